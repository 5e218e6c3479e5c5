package main

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/store"
)

// TestHostileLetters collects what anybody may write to a dead-letter topic. All of
// it is shown, none of it is obeyed by a terminal, and no letter goes where the
// configuration does not send those of its queue.
func TestHostileLetters(t *testing.T) {
	inShop(t, func(s *shop) {
		bytes := hostile + "\xff\xfe\u009b2J\u2028"
		all := died(0, "orders", "poison", "poison", "declined").Encode(0)
		for i := range all.Headers {
			if name := all.Headers[i].Name; name != "redrive-dlq-v" && name != "redrive-dlq-topic" {
				all.Headers[i].Value = bytes
			}
		}
		all.ID, all.Key = bytes, bytes
		counts := died(1, "orders", "poison", "poison", "declined").Encode(0)
		counts.Headers = append(counts.Headers,
			brokers.Header{Name: "redrive-count", Value: "99999999999999999999"},
			brokers.Header{Name: "redrive-attempt", Value: "-1"},
			brokers.Header{Name: "redrive-dlq-dead-at", Value: "99999999999999999999"})
		large := died(2, "orders", "poison", "poison", strings.Repeat(bytes, 10_000)).Encode(0)
		for range 16 {
			large.Headers = append(large.Headers, brokers.Header{Name: "x-" + bytes, Value: strings.Repeat("\x1b", 64<<10)})
		}
		msgs := []brokers.Message{
			all, counts, large,
			{ID: bytes, Body: []byte(bytes), Headers: brokers.Headers{{Name: bytes, Value: bytes}}}, // of nobody that is known
			died(3, "secrets", "poison", "poison", "of a topic that nobody has configured").Encode(0),
			died(4, "payments", "poison", "poison", "of another broker").Encode(0),
			died(5, "refunds", "poison", "poison", "of another dead-letter topic").Encode(0),
		}
		broker := s.brokers["shop"]
		must(s, broker.Publish(s.Context(), "orders-dead", msgs...))
		shown := func(args ...string) {
			s.Helper()
			if out := s.prints(s.Context(), args); strings.Contains(out, "(exit code") {
				s.Errorf("%q: %s", args, out)
			}
		}
		for _, format := range []string{"text", "json"} {
			shown("dlq", "peek", "orders", "-o", format)
		}
		shown("dlq", "collect", "orders")
		for _, format := range []string{"text", "json"} {
			shown("dlq", "groups", "-o", format)
			shown("dlq", "ls", "-o", format)
			shown("dlq", "show", "1", "2", "3", "4", "5", "6", "7", "-o", format)
			shown("dlq", "send", "--all", "--dry-run", "-o", format)
		}
		shown("dlq", "export")
		_, stop := s.work("shop", "orders")
		defer stop()
		if got := s.call("dlq", "send", "--all", "--force", "--because", "a test", "--yes", "--without-receipts", "--wait", "1s"); got.code != exitPartial {
			s.Errorf("exit code %d, messages %q", got.code, got.stderr)
		}
		s.withStore(func(st *store.Store) {
			list, err := st.Letters(s.Context(), store.Filter{States: []store.State{store.StateSkipped}}, store.Page{})
			must(s, err)
			skipped := map[string]string{}
			for _, l := range list.Letters {
				skipped[l.Topic] = l.Note
			}
			for _, topic := range []string{"secrets", "payments", "refunds"} {
				if skipped[topic] == "" || len(broker.Messages(topic)) > 0 || len(s.brokers["events"].Messages(topic)) > 0 {
					s.Errorf("skipped %v, want %s among them, and nothing sent there", skipped, topic)
				}
			}
		})
	})
}

// TestStoreFaults has every command say in one line what is wrong with the store.
func TestStoreFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil   func(s *shop)
		message string
	}{
		"no store": {func(s *shop) {
			must(s, os.WriteFile("letters.db", []byte(strings.Repeat("a shopping list\n", 512)), 0o600))
		},
			"store letters.db: the file is no store, or it is damaged: keep it, and restore a copy beside it"},
		"newer": {func(s *shop) {
			s.fill()
			db, err := sql.Open("sqlite", "letters.db")
			must(s, err)
			defer db.Close()
			_, err = db.Exec("update meta set version = 99")
			must(s, err)
		}, "store letters.db: the store is newer than this program: it has version 99"},
		"a folder":                      {func(s *shop) { must(s, os.Mkdir("letters.db", 0o700)) }, "open letters.db: "},
		"misspelled":                    {func(s *shop) { s.configure("store: {url:", "store: {urll:") }, "urll: there is no such key: did you mean url?"},
		"of a folder that is not there": {func(s *shop) { s.configure("letters.db", "none/letters.db") }, "none/letters.db"},
	} {
		t.Run(name, func(t *testing.T) {
			inShop(t, func(s *shop) {
				tt.spoil(s)
				for _, args := range [][]string{
					{"dlq", "groups"}, {"dlq", "ls"}, {"dlq", "show", "1"}, {"dlq", "send", "1"}, {"dlq", "discard", "1"}, {"dlq", "export"},
					{"dlq", "jobs"}, {"dlq", "backup", "copy.db"}, {"dlq", "collect", "orders"}, {"serve"},
				} {
					s.refuses(exitFailure, tt.message, args...)
					if got := s.call(args...); strings.Count(got.stderr, "\n") > 2 {
						s.Errorf("%q: %s", args, got.stderr)
					}
				}
			})
		})
	}
}

// configure changes the configuration of the shop.
func (s *shop) configure(old, new string) {
	s.Helper()
	must(s, os.WriteFile(config.DefaultFile, []byte(strings.Replace(shopConfig, old, new, 1)), 0o600))
}
