package wire

import (
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

func record() brokers.Headers {
	return brokers.Headers{
		{Name: deadVersion, Value: "1"},
		{Name: "redrive-error-stack", Value: strings.Repeat("s", 300)},
		{Name: "redrive-dlq-history", Value: strings.Repeat("h", 100)},
		{Name: "redrive-dlq-origin-offset", Value: "42"},
		{Name: "redrive-dlq-origin-partition", Value: "3"},
		{Name: "redrive-dlq-reason", Value: "exhausted"},
	}
}

func TestFit(t *testing.T) {
	const note = deadTruncated
	whole := size(record())
	noted := func(names string) int { return len(note) + len(names) }
	tests := []struct {
		name  string
		limit int
		want  string // names of what is left
		note  string
	}{
		{"one to spare", whole + 1, "v error-stack history origin-offset origin-partition reason", ""},
		{"exactly", whole, "v error-stack history origin-offset origin-partition reason", ""},
		{"one short", whole - 1, "v error-stack history origin-offset origin-partition reason", "error-stack"},
		{"least stack worth keeping", whole + noted("error-stack") - (300 - minCut), "v error-stack history origin-offset origin-partition reason", "error-stack"},
		{"stack too short", whole + noted("error-stack") - (300 - minCut) - 1, "v history origin-offset origin-partition reason", "error-stack"},
		{"stack gone", whole + noted("error-stack") - 300 - len("redrive-error-stack"), "v history origin-offset origin-partition reason", "error-stack"},
		{"history gone", whole + noted("error-stack") - 300 - len("redrive-error-stack") - 1, "v origin-offset origin-partition reason", "error-stack,history"},
		{"origin gone", 130, "v reason", "error-stack,history,origin"},
		{"kept whatever the limit", 1, "v reason", "error-stack,history,origin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Fit(record(), tt.limit)
			var left []string
			for _, h := range got {
				if h.Name != note {
					left = append(left, strings.TrimPrefix(strings.TrimPrefix(h.Name, deadPrefix), prefix))
				}
			}
			if names := strings.Join(left, " "); names != tt.want {
				t.Errorf("left %q, want %q", names, tt.want)
			}
			if got.Get(note) != tt.note {
				t.Errorf("note %q, want %q", got.Get(note), tt.note)
			}
			if tt.limit > 130 && size(got) > tt.limit {
				t.Errorf("%d bytes, the limit is %d", size(got), tt.limit)
			}
		})
	}
}

// A copy has no note, since handlers see none of its metadata.
func TestFitOfACopy(t *testing.T) {
	msg, meta := full()
	_, copied := Partition(Encode(msg, meta))
	history, origin := copied.Get(nameHistory), size(brokers.Headers{{Name: nameHistory, Value: copied.Get(nameHistory)}})
	for limit, want := range map[int][2]bool{size(copied): {true, true}, size(copied) - 1: {false, true}, size(copied) - origin - 1: {}, 1: {}} {
		got := Fit(copied, limit)
		_, hasOrigin := got.Lookup(nameOrigin + "offset")
		if _, ok := got.Lookup(nameHistory); ok != want[0] || hasOrigin != want[1] || got.Get(nameDueAt) == "" ||
			got.Get(nameID) == "" || got.Get(nameIdempotencyKey) == "" || got.Get(nameRedriveCount) == "" || got.Get(nameSend) == "" {
			t.Errorf("in %d bytes: history %v, origin %v, want %v, and due time and identity: %v", limit, ok, hasOrigin, want, got)
		}
	}
	if copied.Get(nameHistory) != history || len(copied) != 17 {
		t.Errorf("Fit changed what it was given: %v", copied)
	}
}

func TestFitKeepsEarlierNotes(t *testing.T) {
	noted := func(names string) brokers.Headers {
		return append(brokers.Headers{{Name: deadTruncated, Value: names}}, record()...)
	}
	for _, tt := range []struct {
		earlier string
		limit   int
		want    string
	}{
		{"rule,rule,no word,", 1 << 20, "rule"},
		{"error-stack", 400, "error-stack"},
		{strings.Repeat("x,", 10_000), 1 << 20, "x"},
		{"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", 1 << 20, "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p"},
		{"error-stack,\x1b,history", 1 << 20, "error-stack,history"},
	} {
		if got := Fit(noted(tt.earlier), tt.limit).Get(deadTruncated); got != tt.want {
			t.Errorf("after %.20q the note is %q, want %q", tt.earlier, got, tt.want)
		}
	}
}

// A copy that waits for its dead letter keeps its reason, its fingerprint and 64
// bytes of its error text at any limit. It lists the parts that it has lost.
func TestFitOfACopyThatWaits(t *testing.T) {
	msg, meta := waiting()
	meta.Death.Truncated = nil
	meta.Death.ErrorText, meta.Death.Stack = strings.Repeat("e", 300), strings.Repeat("s", 300)
	_, copied := Partition(Encode(msg, meta))
	for limit, want := range map[int]string{
		size(copied):       "",
		size(copied) - 1:   "error-stack",
		size(copied) - 350: "error-stack,history",
		size(copied) - 500: "error-stack,history,error-message",
		1:                  "error-stack,history,error-message,origin,rule",
	} {
		got := Fit(copied, limit)
		_, death := Decode(got, limits())
		d := death.Death
		if d == nil || strings.Join(d.Truncated, ",") != want || d.Reason != "poison" || d.Attempt != 3 || d.Fingerprint != meta.Death.Fingerprint || d.By == "" ||
			len(d.ErrorText) < 64 || !strings.HasPrefix(meta.Death.ErrorText, strings.TrimSuffix(d.ErrorText, "…")) || limit > 1 && size(got) > limit {
			t.Errorf("in %d of %d bytes: %+v, want %q cut", limit, size(copied), d, want)
		}
	}
}
