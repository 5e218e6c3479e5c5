package foreign

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/integration/goldentest"
)

// golden is a dead letter as an adapter delivers it, and what it tells. From
// names where its headers are written down.
type golden struct {
	From        []string          `json:"from"`
	ID          string            `json:"id"`
	Topic       string            `json:"topic"`
	PublishedAt int64             `json:"published_at,omitempty"`
	Headers     []header          `json:"headers,omitempty"`
	Origin      []header          `json:"origin,omitempty"`
	Want        map[string]string `json:"want"`
}

type header struct {
	Name string `json:"name"`
	Text string `json:"text,omitempty"`
	Hex  string `json:"hex,omitempty"`
	Type string `json:"type,omitempty"`
}

func (g golden) delivery(t *testing.T) *brokers.Delivery {
	t.Helper()
	list := func(headers []header) (h brokers.Headers) {
		for _, one := range headers {
			raw, err := hex.DecodeString(one.Hex)
			if err != nil {
				t.Fatalf("%s: %v", one.Name, err)
			}
			h = append(h, brokers.Header{Name: one.Name, Value: one.Text + string(raw), Type: one.Type})
		}
		return h
	}
	m := brokers.Message{ID: g.ID, Topic: g.Topic, Body: []byte("body"), Headers: list(g.Headers)}
	if g.PublishedAt > 0 {
		m.PublishedAt = time.UnixMilli(g.PublishedAt).UTC()
	}
	return &brokers.Delivery{Message: m, Carried: &brokers.Meta{Origin: list(g.Origin)}}
}

// told has what an entry says, by the names of its fields.
func told(e dlq.Entry, f Format) map[string]string {
	all := map[string]string{
		"Format": string(f), "Message.ID": e.Message.ID, "Message.Topic": e.Message.Topic, "Message.Key": e.Message.Key,
		"Reason": e.Reason, "ErrorType": e.ErrorType, "ErrorCode": e.ErrorCode, "ErrorText": e.ErrorText, "Stack": e.Stack,
		"Fingerprint": e.Fingerprint, "Rule": e.Rule, "Group": e.Group, "DeadBy": e.DeadBy, "Truncated": strings.Join(e.Truncated, ","),
		"Meta.IdempotencyKey": e.Meta.IdempotencyKey, "Meta.Class": e.Meta.Class,
	}
	for name, at := range map[string]time.Time{
		"DeadAt": e.DeadAt, "Message.PublishedAt": e.Message.PublishedAt, "Meta.FirstFailedAt": e.Meta.FirstFailedAt, "Meta.LastFailedAt": e.Meta.LastFailedAt,
	} {
		if !at.IsZero() {
			all[name] = at.Format(time.RFC3339Nano)
		}
	}
	for name, n := range map[string]int{"Meta.Attempt": e.Meta.Attempt, "Meta.RedriveCount": e.Meta.RedriveCount, "Abandoned": e.Abandoned} {
		if n > 0 {
			all[name] = fmt.Sprint(n)
		}
	}
	for _, h := range e.Message.Headers {
		all["Message.Headers "+h.Name] += fmt.Sprintf("%+q %s", h.Value, h.Type)
	}
	for _, h := range e.Meta.Origin {
		all["Meta.Origin "+h.Name] += h.Value
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	seen := map[Format]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var g golden
			if err := json.Unmarshal(text, &g); err != nil {
				t.Fatal(err)
			}
			if len(g.From) == 0 {
				t.Error("the file does not say where its headers are written down")
			}
			entry, format := Decode(g.delivery(t))
			seen[format] = true
			if got := told(entry, format); !maps.Equal(got, g.Want) {
				if goldentest.Updates() {
					g.Want = got
					write(t, file, g)
					return
				}
				for name := range got {
					if got[name] != g.Want[name] {
						t.Errorf("%s = %q, want %q", name, got[name], g.Want[name])
					}
				}
				for name, want := range g.Want {
					if _, ok := got[name]; !ok {
						t.Errorf("%s is not there, want %q", name, want)
					}
				}
			}
		})
	}
	for _, f := range []Format{Redrive, SpringKafka, Watermill, MassTransit, RabbitMQ, SQS, Raw} {
		if !seen[f] {
			t.Errorf("no golden file is of the format %s", f)
		}
	}
}

func write(t *testing.T, file string, g golden) {
	t.Helper()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	if err := enc.Encode(g); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
