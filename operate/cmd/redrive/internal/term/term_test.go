package term

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rivo/uniseg"

	"github.com/redrive-go/redrive/operate/internal/text"
)

// hostile is what a terminal would obey, or show as something else.
const hostile = "a\x1b[2J\r\nb\u009b31m \u202etxt\x00\xff"

func TestTable(t *testing.T) {
	table := NewTable("id", "topic", "error")
	table.Add(Cell{Text: "7", Right: true}, Cell{Text: "orders"}, Cell{Text: "card declined: the bank says no, and says why it does not want to", Style: Red})
	table.Add(Cell{Text: "1234", Right: true}, Cell{Text: ""}, Cell{Text: hostile})
	table.Add(Cell{Text: "12", Right: true}, Cell{Text: "注文"}, Cell{Text: "é"})
	for _, tt := range []struct {
		width  int
		colour bool
		want   string
	}{
		{0, false, `
  id  topic   error
   7  orders  card declined: the bank says no, and says why it does not want to
1234  -       a\x1b[2J\r\nb\u009b31m \u202etxt\x00\xff
  12  注文    é
`},
		{40, false, `
  id  topic   error
   7  orders  card declined: the bank s…
1234  -       a\x1b[2J\r\nb\u009b31m \u…
  12  注文    é
`},
		{20, false, `
  id  topic   error
   7  orders  card …
1234  -       a\x1b…
  12  注文    é
`},
		{16, false, `
  id  top…  err…
   7  ord…  car…
1234  -     a\x…
  12  注文  é
`},
		{30, true, "\n" +
			"  \x1b[1mid\x1b[0m  \x1b[1mtopic\x1b[0m   \x1b[1merror\x1b[0m\n" +
			"   7  orders  \x1b[31mcard declined: …\x1b[0m\n" +
			"1234  -       a\\x1b[2J\\r\\nb\\u…\n" +
			"  12  注文    é\n"},
	} {
		var b strings.Builder
		if err := table.Write(&b, tt.width, tt.colour); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != tt.want {
			t.Errorf("width %d, colour %v:%s\nwant%s", tt.width, tt.colour, got, tt.want)
		}
	}
}

// FuzzTable demands that no cell becomes more than a part of one line, and no line
// wider than it may be.
func FuzzTable(f *testing.F) {
	f.Add("id", hostile, 20)
	f.Add("\u0301\u0301", "👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 16)
	f.Add(strings.Repeat("注", 50), "x", 17)
	f.Fuzz(func(t *testing.T, a, b string, width int) {
		width = 16 + width&0x7f
		table := NewTable("first", "second", "third")
		table.Add(Cell{Text: a}, Cell{Text: b, Right: true}, Cell{Text: a + b})
		var out strings.Builder
		if err := table.Write(&out, width, false); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != 2 {
			t.Fatalf("%d lines:\n%q", len(lines), out.String())
		}
		for _, line := range lines {
			if uniseg.StringWidth(line) > width || !text.IsLine(line, len(line)) {
				t.Errorf("the line %q is %d columns wide, want at most %d", line, uniseg.StringWidth(line), width)
			}
		}
	})
}

func TestTableFails(t *testing.T) {
	table := NewTable("id")
	reader, writer := io.Pipe()
	reader.Close()
	if err := table.Write(writer, 80, false); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want that of the writer", err)
	}
}

func TestJSON(t *testing.T) {
	value := map[string]string{"name": hostile + "\U000e0001<&>é\u2028"}
	for _, indent := range []string{"", "  "} {
		got, err := JSON(value, indent, indent)
		if err != nil {
			t.Fatal(err)
		}
		if text.Lines(string(got)) != string(got) || strings.Contains(string(got), "\n") != (indent != "") {
			t.Errorf("indent %q: a terminal obeys %q", indent, got)
		}
		var again map[string]string
		want := strings.ToValidUTF8(value["name"], "\ufffd")
		if err := json.Unmarshal(got, &again); err != nil || again["name"] != want {
			t.Errorf("indent %q: %q is read as %q, error %v, want %q", indent, got, again["name"], err, want)
		}
		if !bytes.Contains(got, []byte("<&>é")) {
			t.Errorf("%q escapes what is harmless", got)
		}
	}
	if _, err := JSON(make(chan int), "", ""); err == nil {
		t.Error("a channel is JSON")
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(hostile)
	f.Add("\U000e0001\\u0000\"")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := JSON([]string{s}, "", "")
		if err != nil || !text.IsLine(string(got), len(got)) {
			t.Fatalf("%q, error %v", got, err)
		}
		var again []string
		if err := json.Unmarshal(got, &again); err != nil || again[0] != strings.ToValidUTF8(s, "\ufffd") && len(again[0]) < len(s) {
			t.Errorf("%q is read as %q, error %v", got, again, err)
		}
	})
}

func TestProgress(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for _, tt := range []struct {
		name  string
		live  int
		total int
		want  string
	}{
		{"lines of a job that has hardly begun", 0, 10_000, "250 of 10000 letters, 50/s\n1000 of 10000 letters, 100/s, 1m30s left\n"},
		{"lines", 0, 1000, "250 of 1000 letters, 50/s, 15s left\n1000 of 1000 letters, 100/s\n"},
		{"lines without an end", 0, 0, "250 letters, 50/s\n1000 letters, 100/s\n"},
		{"a line", 80, 1000, clearLine + "[                    ] 0 of 1000 letters, 0/s" +
			clearLine + "[=====               ] 250 of 1000 letters, 50/s, 15s left" +
			clearLine + "[=====               ] 260 of 1000 letters, 51/s, 15s left" +
			clearLine + "[====================] 1000 of 1000 letters, 100/s" + clearLine},
		{"a short line", 30, 0, clearLine + "0 letters, 0/s" + clearLine + "250 letters, 50/s" + clearLine + "260 letters, 51/s" + clearLine + "1000 letters, 100/s" + clearLine},
	} {
		var b strings.Builder
		p := NewProgress(Streams{Err: &b, Live: tt.live}, "letters", tt.total, start)
		p.Set(0, at(0))
		p.Set(1, at(0.05))
		p.Set(250, at(5))
		p.Set(260, at(5.1))
		p.Set(1000, at(10))
		p.Close()
		if got := b.String(); got != tt.want {
			t.Errorf("%s:\n%q\nwant\n%q", tt.name, got, tt.want)
		}
	}
	var again strings.Builder
	p := NewProgress(Streams{Err: &again}, "letters", 1000, start)
	p.Set(500, at(0)) // by an earlier command
	p.Set(750, at(5))
	if want := "750 of 1000 letters, 50/s, 5s left\n"; again.String() != want {
		t.Errorf("gone on with:\n%q\nwant\n%q", again.String(), want)
	}
	var b strings.Builder
	NewProgress(Streams{Err: &b, Live: 20}, hostile, 10, start).Set(3, start)
	if got := strings.TrimPrefix(b.String(), clearLine); uniseg.StringWidth(got) > 19 || !text.IsLine(got, len(got)) {
		t.Errorf("%q does not fit into a line of 20 columns", got)
	}
}

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]error{
		"312\n": nil, " 312 \r\n": nil, "312": nil,
		"\n": ErrDeclined, "": ErrDeclined, "y\n": ErrDeclined, "yes\n": ErrDeclined, "3120\n": ErrDeclined, "31\n2\n": ErrDeclined,
	} {
		var b strings.Builder
		s := Streams{In: strings.NewReader(answer), Err: &b, Asks: true}
		if err := s.Confirm(t.Context(), "This discards 312 letters of "+hostile, 312); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("answer %q: error %v, want %v", answer, err, want)
		}
		if text.Lines(b.String()) != b.String() || !strings.Contains(b.String(), "Type 312 to go on") {
			t.Errorf("the question is %q", b.String())
		}
	}
	s := Streams{In: strings.NewReader("312\n"), Err: io.Discard}
	if err := s.Confirm(t.Context(), "", 312); !errors.Is(err, ErrNobody) {
		t.Errorf("no terminal: error %v", err)
	}
}

// TestConfirmInterrupted ends a question that nobody answers.
func TestConfirmInterrupted(t *testing.T) {
	reader, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted by a test")
	asked := writerFunc(func(p []byte) (int, error) { cancel(stop); return len(p), nil })
	if err := (Streams{In: reader, Err: asked, Asks: true}).Confirm(ctx, "Sure?", 1); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestTimes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 678, time.FixedZone("", 3600))
	for d, want := range map[time.Duration]string{
		0: "0s ago", 999 * time.Millisecond: "0s ago", 59 * time.Second: "59s ago", 90 * time.Second: "1m ago",
		3 * time.Hour: "3h ago", 23*time.Hour + 59*time.Minute: "23h ago", 49 * time.Hour: "2d ago", -5 * time.Minute: "in 5m",
	} {
		if got := Ago(now.Add(-d), now); got != want {
			t.Errorf("Ago of %v = %q, want %q", d, got, want)
		}
	}
	if got := ISO(now); got != "2026-01-02T02:04:05Z" {
		t.Errorf("ISO = %q", got)
	}
	if Ago(time.Time{}, now) != "" || ISO(time.Time{}) != "" {
		t.Error("there is a time where there is none")
	}
}

// TestOf looks at streams that are no terminals: those of a pipe.
func TestOf(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	s := Of(reader, writer, writer, func(string) string { return "" })
	if s.Width != 80 || s.Colour || s.Live != 0 || s.Asks {
		t.Errorf("a pipe is %+v", s)
	}
}

func TestSheet(t *testing.T) {
	const bad = "a\x1b[2J\nb\u202e\x00"
	var s Sheet
	s.Title("Letter 7 of " + bad)
	s.Pair("topic", "orders")
	s.Pair("nothing", "")
	s.Pair("error", "the bank of a customer declined, and declined again, and nobody knows why")
	s.Pair("a name that is longer than others", bad)
	s.Title("Body")
	s.Text("{\n\t\"id\": 7\n}\n" + strings.Repeat("x", 50) + "\n" + bad)
	for _, tt := range []struct {
		width  int
		colour bool
		want   string
	}{
		{40, false, `Letter 7 of a\x1b[2J\nb\u202e\x00
  topic  orders
  error  the bank of a customer
         declined, and declined again,
         and nobody knows why
  a name that is longer than others
         a\x1b[2J\nb\u202e\x00

Body
  {
      "id": 7
  }
  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
  xxxxxxxxxxxx
  a\x1b[2J
  b\u202e\x00
`},
		{0, true, `Letter 7 of a\x1b[2J\nb\u202e\x00
  topic  orders
  error  the bank of a customer declined, and declined again, and nobody knows why
  a name that is longer than others
         a\x1b[2J\nb\u202e\x00

Body
  {
      "id": 7
  }
  ` + strings.Repeat("x", 50) + `
  a\x1b[2J
  b\u202e\x00
`},
	} {
		var b strings.Builder
		if err := s.Write(&b, tt.width, tt.colour); err != nil {
			t.Fatal(err)
		}
		got := b.String()
		if tt.colour {
			if !strings.Contains(got, string(Bold)+"Body\x1b[0m") {
				t.Errorf("no colours in %q", got)
			}
			got = strings.NewReplacer(string(Bold), "", string(Dim), "", "\x1b[0m", "").Replace(got)
		}
		if got != tt.want {
			t.Errorf("width %d:\n%s\nwant\n%s", tt.width, got, tt.want)
		}
	}
}

// FuzzWrap loses nothing but spaces, and keeps within the width.
func FuzzWrap(f *testing.F) {
	f.Add("the bank  declined", 12)
	f.Add("  宽字符宽字符宽字符宽字符 x", 13)
	f.Add("e\u0301e\u0301e\u0301 🇩🇪🇩🇪🇩🇪🇩🇪🇩🇪🇩🇪🇩🇪🇩🇪", 14)
	f.Fuzz(func(t *testing.T, s string, width int) {
		s = Safe(s)
		width = max(leastLast, width%200)
		lines := Wrap(s, width)
		for _, line := range lines {
			if uniseg.StringWidth(line) > width {
				t.Errorf("%q is wider than %d", line, width)
			}
		}
		squeeze := func(s string) string { return strings.ReplaceAll(s, " ", "") }
		if got := squeeze(strings.Join(lines, "")); got != squeeze(s) {
			t.Errorf("%q became %q", s, lines)
		}
	})
}
