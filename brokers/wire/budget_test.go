package wire

import (
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
)

func record() brokers.Headers {
	return brokers.Headers{
		{Name: DeadVersion, Value: "1"},
		{Name: ErrorStack, Value: strings.Repeat("s", 300)},
		{Name: DeadHistory, Value: strings.Repeat("h", 100)},
		{Name: DeadOrigin + "offset", Value: "42"},
		{Name: DeadOrigin + "partition", Value: "3"},
		{Name: DeadReason, Value: "exhausted"},
	}
}

func TestFit(t *testing.T) {
	const note = DeadTruncated
	steps := []Step{{Name: ErrorStack, Cut: true}, {Name: DeadHistory}, {Name: ErrorMessage}, {Name: DeadOrigin}}
	size := Size(record())
	noted := func(names string) int { return len(note) + len(names) }
	tests := []struct {
		name  string
		limit int
		want  string // names of what is left
		note  string
	}{
		{"one to spare", size + 1, "v error-stack history origin origin reason", ""},
		{"exactly", size, "v error-stack history origin origin reason", ""},
		{"one short", size - 1, "v error-stack history origin origin reason", "error-stack"},
		{"least stack worth keeping", size + noted("error-stack") - (300 - minCut), "v error-stack history origin origin reason", "error-stack"},
		{"stack too short", size + noted("error-stack") - (300 - minCut) - 1, "v history origin origin reason", "error-stack"},
		{"stack gone", size + noted("error-stack") - 300 - len(ErrorStack), "v history origin origin reason", "error-stack"},
		{"history gone", size + noted("error-stack") - 300 - len(ErrorStack) - 1, "v origin origin reason", "error-stack,history"},
		{"origin gone", 130, "v reason", "error-stack,history,origin"},
		{"kept whatever the limit", 1, "v reason", "error-stack,history,origin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Fit(record(), tt.limit, note, nil, steps...)
			var left []string
			for _, h := range got {
				if h.Name != note {
					left = append(left, Field(h.Name))
				}
			}
			if names := strings.Join(left, " "); names != tt.want {
				t.Errorf("left %q, want %q", names, tt.want)
			}
			if got.Get(note) != tt.note {
				t.Errorf("note %q, want %q", got.Get(note), tt.note)
			}
			if tt.limit > 130 && Size(got) > tt.limit {
				t.Errorf("%d bytes, the limit is %d", Size(got), tt.limit)
			}
		})
	}
}

func TestFitKeepsEarlierNotes(t *testing.T) {
	got := Fit(record(), 1<<20, DeadTruncated, []string{"rule", "rule", "no word", ""})
	if note := got.Get(DeadTruncated); note != "rule" {
		t.Errorf("note %q, want what was shed before, once: %q", note, "rule")
	}
	got = Fit(record(), 400, DeadTruncated, []string{"error-stack"}, Step{Name: ErrorStack})
	if note := got.Get(DeadTruncated); note != "error-stack" {
		t.Errorf("note %q, want %q", note, "error-stack")
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("x,", 10_000)
	if got := Names(long); len(got) != 1 {
		t.Errorf("Names of a repeated name = %q, want it once", got)
	}
	if got := Names(""); got != nil {
		t.Errorf("Names of nothing = %q, want nil", got)
	}
	if got := Names("error-stack,\x1b,history"); len(got) != 2 {
		t.Errorf("Names = %q, want error-stack and history", got)
	}
}
