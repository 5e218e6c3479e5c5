package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-go/redrive/internal/text"
	"github.com/redrive-go/redrive/operate/store"
)

// TestBrowse holds what the commands print that look at letters. Their JSON is a
// promise; and no letter reaches beyond its place.
func TestBrowse(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		for _, format := range []string{"text", "json"} {
			s.wants("groups."+format, "dlq", "groups", "-o", format)
			s.wants("ls."+format, "dlq", "ls", "-o", format)
			s.wants("show."+format, "dlq", "show", "4", "7", "-o", format)
		}
		s.wants("groups_count.text", "dlq", "groups", "--sort", "count", "--topic", "orders")
		s.wants("groups_empty.text", "dlq", "groups", "--state", "returned")
		s.wants("groups_empty.json", "dlq", "groups", "--state", "returned", "-o", "json")
		s.session("ls_pages")
		s.wants("show_binary.text", "dlq", "show", "8")
		s.wants("show_hex.text", "dlq", "show", "1", "--body", "hex")
		s.wants("export.jsonl", "dlq", "export")
		s.streams.Colour, s.streams.Width = true, 60
		s.wants("ls_colour.text", "dlq", "ls")
		s.streams = plain
		for _, file := range []string{"groups.json", "ls.json", "show.text", "show.json", "export.jsonl", "show_binary.text"} {
			got, err := os.ReadFile(filepath.Join(s.golden, file))
			s.must(err)
			if !text.IsLines(string(got), len(got)) || strings.Contains(string(got), "\t") {
				s.Errorf("%s has characters that a terminal obeys", file)
			}
		}
		for _, file := range []string{"groups.text", "ls.text", "show.text", "show_binary.text"} {
			got, err := os.ReadFile(filepath.Join(s.golden, file))
			s.must(err)
			for line := range strings.Lines(string(got)) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
					s.Errorf("%s has a line of %d columns: %s", file, n, line)
				}
			}
		}
	})
}

// TestSelect holds each flag that selects against the letters that it does.
func TestSelect(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.withStore(func(st *store.Store) {
			_, err := st.Discard(s.Context(), time.Now(), store.Actor{Who: "anna"}, store.Filter{IDs: []int64{3}})
			s.must(err)
		})
		for _, tt := range []struct {
			args []string
			want []int64
		}{
			{nil, []int64{8, 7, 6, 5, 4, 2, 1}},
			{[]string{"--state", "all"}, []int64{8, 7, 6, 5, 4, 3, 2, 1}},
			{[]string{"--state", "discarded"}, []int64{3}},
			{[]string{"3", "5"}, []int64{5, 3}},
			{[]string{"3", "5", "--state", "open"}, []int64{5}},
			{[]string{"--topic", "orders"}, []int64{7, 5, 4, 2, 1}},
			{[]string{"--broker", "events"}, []int64{6}},
			{[]string{"--source", "payments-dead"}, []int64{6}},
			{[]string{"--group", "billing"}, []int64{6}},
			{[]string{"--reason", "exhausted"}, []int64{5, 4}},
			{[]string{"--class", "unknown"}, []int64{8, 6}},
			{[]string{"--format", "raw"}, nil},
			{[]string{"--error", "2"}, []int64{5, 4}},
			{[]string{"--id", "orders-3"}, []int64{4}},
			{[]string{"--header", "tenant=acme", "--reason", "poison"}, []int64{2, 1}},
			{[]string{"--header", "binary"}, []int64{7}},
			{[]string{"--header", "tenant=other"}, nil},
			{[]string{"--text", "refused"}, []int64{5, 4}},
			{[]string{"--text", `"cents":100,`}, []int64{2}},
			{[]string{"--since", "3h56m", "--until", "1999-12-31T20:06"}, []int64{6, 5}},
			{[]string{"--since", "1999-12-31"}, []int64{8, 7, 6, 5, 4, 2, 1}},
			{[]string{"--since", "2000-01-01"}, nil},
			{[]string{"--until", "1d"}, nil},
		} {
			got := s.call(append([]string{"dlq", "ls", "-o", "json"}, tt.args...)...)
			var rows []letterRow
			if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil || got.code != exitOK {
				s.Fatalf("%q: %v, %+v", tt.args, err, got)
			}
			var ids []int64
			for _, row := range rows {
				ids = append(ids, row.ID)
			}
			if !slices.Equal(ids, tt.want) {
				s.Errorf("%q selects %v, want %v", tt.args, ids, tt.want)
			}
		}
	})
}

func TestBrowseRefuses(t *testing.T) {
	inShop(t, func(s *shop) {
		s.refuses(exitFailure, "there are no letters yet: ", "dlq", "ls")
		if _, err := os.Stat("letters.db"); err == nil {
			s.Error("a command that looks has made a store")
		}
		s.fill()
		s.session("browse_refuses")
		s.refuses(exitFailure, "nothing was written", "dlq", "export", "--to", "redrive.yaml") // the system says why
	})
}

// TestRawBody writes a body to the byte.
func TestRawBody(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		if got := s.call("dlq", "show", "8", "--body", "raw"); got.code != exitOK || got.stdout != "\x00\x01\x02\xff binary" {
			s.Errorf("%+v", got)
		}
		s.streams.Terminal = true
		s.refuses(exitUsage, "into a file or a pipe", "dlq", "show", "8", "--body", "raw")
	})
}

// TestExportIsWhole reads a letter that was exported, and finds all bytes of it.
func TestExportIsWhole(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		if got := s.call("dlq", "export", "8", "--to", "letters.jsonl"); got.code != exitOK || got.stderr != "wrote 1 letter to letters.jsonl\n" {
			s.Fatalf("%+v", got)
		}
		line, err := os.ReadFile("letters.jsonl")
		s.must(err)
		var doc letterDoc
		s.must(json.Unmarshal(line, &doc))
		body, err := base64.StdEncoding.DecodeString(doc.Body)
		if err != nil || doc.Encoding != "base64" || string(body) != "\x00\x01\x02\xff binary" || doc.Topic != "orders"+hostile {
			s.Errorf("exported as %s", line)
		}
		if info, err := os.Stat("letters.jsonl"); err != nil || info.Mode().Perm() != 0o600 {
			s.Errorf("mode %v, error %v", info.Mode(), err)
		}
	})
}

func TestBackup(t *testing.T) {
	inShop(t, func(s *shop) {
		s.fill()
		s.wants("backup_dry.text", "dlq", "backup", "copy.db", "--dry-run")
		if _, err := os.Stat("copy.db"); err == nil {
			s.Error("a dry run has written a file")
		}
		s.wants("backup.text", "dlq", "backup", "copy.db")
		before := s.call("dlq", "export", "--state", "all").stdout
		s.refuses(exitFailure, "the store is not empty", "dlq", "backup", "--restore", "copy.db")
		s.refuses(exitUsage, "use backup file, or backup --restore file", "dlq", "backup")
		s.must(os.Remove("letters.db"))
		s.wants("restore.text", "dlq", "backup", "--restore", "copy.db")
		if after := s.call("dlq", "export", "--state", "all").stdout; after != before || after == "" {
			s.Errorf("restored\n%s\nwant\n%s", after, before)
		}
	})
}

// TestStoreCompletion completes words of letters, unless a shell could obey them.
func TestStoreCompletion(t *testing.T) {
	inShop(t, func(s *shop) {
		for filled := range 2 {
			for flag, want := range map[string][]string{
				"--topic":  {"orders", "payments", "refunds", "visits"},
				"--group":  {"billing", "ledger"},
				"--reason": {"exhausted", "panic", "poison", "unclassified"},
			} {
				if filled == 0 {
					want = nil
				}
				got := s.call("__complete", "dlq", "ls", flag, "")
				lines := strings.Split(got.stdout, "\n")
				if i := slices.Index(lines, ":4"); i < 0 || !slices.Equal(lines[:i], want) {
					s.Errorf("%s: %q, want %q", flag, lines, want)
				}
			}
			if filled == 0 {
				s.fill()
			}
		}
		if got := s.call("__complete", "dlq", "ls", "--error", ""); !strings.Contains(got.stdout, "2\tdial tcp 10.0.0.7:443: connect: connection refused\n") {
			s.Errorf("--error: %q", got.stdout)
		}
	})
}
