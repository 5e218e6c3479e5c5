package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/cmd/redrive/internal/term"
	"github.com/redrive-go/redrive/operate/config"
	"github.com/redrive-go/redrive/operate/internal/typo"
	"github.com/redrive-go/redrive/operate/store"
)

// letterDoc is all that is known of a letter.
type letterDoc struct {
	letterRow

	// Received are the headers of the dead letter as it was collected.
	Received []headerRow `json:"received"`

	// Failures are the last failures of the message, the oldest first.
	Failures []failureRow `json:"failures"`

	// Stack is that of a panic.
	Stack string `json:"stack"`

	// History is what happened to the letter in the store.
	History []changeRow `json:"history"`

	content

	body []byte
}

// headerRow is a header of a message.
type headerRow struct {
	// Name is its name.
	Name string `json:"name"`

	// Value is its value.
	Value string `json:"value"`

	// Encoding is `base64` where name and value are in it, because they are not
	// UTF-8, and empty elsewhere.
	Encoding string `json:"encoding"`

	// Type is the broker's own type of the value, empty for text.
	Type string `json:"type"`
}

// failureRow is a failed run of a message.
type failureRow struct {
	// At is when it failed.
	At instant `json:"at"`

	// Class is that of the error.
	Class string `json:"class"`

	// Fingerprint is that of the error.
	Fingerprint string `json:"fingerprint"`
}

// changeRow is a change of the state of a letter.
type changeRow struct {
	// At is when it happened.
	At instant `json:"at"`

	// From is the state before; empty for the collecting.
	From string `json:"from"`

	// To is the state after.
	To string `json:"to"`

	// Who is who asked for it; empty if nobody did: the letter came, or a receipt.
	Who string `json:"who"`

	// Command is the command that asked for it.
	Command string `json:"command"`

	// Because is why.
	Because string `json:"because"`

	// Job is the number of the job that did it; 0 for none.
	Job int64 `json:"job"`

	// Note is what else there is to say.
	Note string `json:"note"`
}

func newShow(d *desk) *cobra.Command {
	v := &view{}
	body := choice{"auto", []string{"auto", "text", "hex", "none", "raw"}}
	cmd := &cobra.Command{
		Use:   "show letter...",
		Short: "Print all that is known of letters: what happened, headers, body",
		Long: `Show prints all that is known of letters: why they are dead, what happened to them
since, their headers and their body. JSON is laid out, other text is printed as it
is, and everything else as hex digits; a long body is cut. --body raw writes the
body of one letter and nothing else, as it is.`,
		Example: `  redrive dlq show 4711
  redrive dlq show 4711 --body raw > order.json
  redrive dlq show 4711 4712 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("which letters? use the numbers that redrive dlq ls shows")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s := &selection{states: newList("", parseState)}
			f, err := s.letters(args, time.Now())
			if err != nil {
				return err
			}
			if body.value == "raw" && (len(args) != 1 || d.Terminal) {
				return usage(errors.New("--body raw writes the body of one letter into a file or a pipe: use one number, and > file"))
			}
			return d.withStore(cmd.Context(), func(_ *config.Config, st *store.Store) error {
				return showLetters(cmd.Context(), d, v, st, f.IDs, body.value)
			})
		},
	}
	v.register(cmd.Flags())
	cmd.Flags().Var(&body, "body", "how to print the body: "+typo.AnyOf(body.words))
	return cmd
}

func showLetters(ctx context.Context, d *desk, v *view, s *store.Store, ids []int64, body string) error {
	docs := func(yield func(letterDoc, error) bool) {
		for _, id := range ids {
			doc, err := docOf(ctx, s, id)
			if !yield(doc, err) || err != nil {
				return
			}
		}
	}
	switch {
	case body == "raw":
		for doc, err := range docs {
			if err == nil {
				_, err = d.Out.Write(doc.body)
			}
			return err
		}
		return nil
	case v.isJSON():
		return showJSON(d.Out, iter.Seq2[letterDoc, error](docs))
	}
	between := ""
	for doc, err := range docs {
		if err != nil {
			return err
		}
		fmt.Fprint(d.Out, between)
		between = "\n"
		if err := doc.sheet(body).Write(d.Out, d.Width, d.Colour); err != nil {
			return err
		}
	}
	return nil
}

// docOf reads all that the store has of a letter.
func docOf(ctx context.Context, s *store.Store, id int64) (doc letterDoc, err error) {
	l, err := s.Letter(ctx, id)
	if err != nil {
		return doc, err
	}
	raw, entry, err := s.Content(ctx, id)
	if err != nil {
		return doc, err
	}
	history, err := s.History(ctx, id)
	if err != nil {
		return doc, err
	}
	doc = letterDoc{
		letterRow: rowOf(l), content: contentOf(entry.Message), Received: headerRows(raw.Headers),
		Failures: []failureRow{}, Stack: entry.Stack, History: []changeRow{}, body: entry.Message.Body,
	}
	for _, f := range entry.Meta.History {
		doc.Failures = append(doc.Failures, failureRow{instant{f.At}, f.Class, f.Fingerprint})
	}
	for _, c := range history {
		doc.History = append(doc.History, changeRow{
			At: instant{c.At}, From: string(c.From), To: string(c.To), Note: c.Note, Job: c.Job,
			Who: c.Actor.Who, Command: c.Actor.Command, Because: c.Actor.Reason,
		})
	}
	return doc, nil
}

func contentOf(m brokers.Message) content {
	c := content{Headers: headerRows(m.Headers), Body: string(m.Body)}
	if !utf8.Valid(m.Body) {
		c.Body, c.Encoding = base64.StdEncoding.EncodeToString(m.Body), "base64"
	}
	return c
}

func headerRows(headers brokers.Headers) []headerRow {
	rows := make([]headerRow, len(headers))
	for i, h := range headers {
		rows[i] = headerRow{Name: h.Name, Value: h.Value, Type: h.Type}
		if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Value) {
			encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
			rows[i] = headerRow{encode(h.Name), encode(h.Value), "base64", h.Type}
		}
	}
	return rows
}

// sheet is a letter for people.
func (doc letterDoc) sheet(body string) *term.Sheet {
	s := &term.Sheet{}
	s.Title(fmt.Sprintf("Letter %d is %s", doc.ID, doc.State))
	doc.describe(s)
	s.Title("What happened to it here")
	for _, c := range doc.History {
		s.Pair(term.ISO(c.At.Time), c.text())
	}
	if len(doc.Failures) > 0 {
		s.Title("Its last failures")
		for _, f := range doc.Failures {
			s.Pair(term.ISO(f.At.Time), strings.TrimSpace(f.Class+" "+f.Fingerprint))
		}
	}
	if len(doc.Headers) > 0 {
		s.Title("Headers")
		for _, h := range doc.Headers {
			s.Pair(h.Name, h.text())
		}
	}
	if doc.Stack != "" {
		s.Title("Stack")
		s.Text(doc.Stack)
	}
	doc.showBody(s, body)
	return s
}

func (doc letterDoc) describe(s *term.Sheet) {
	s.Pair("topic", doc.Topic)
	s.Pair("group", doc.Group)
	s.Pair("collected from", strings.TrimSpace(doc.Source+" "+doc.Position)+", broker "+doc.Broker)
	s.Pair("message", doc.MessageID)
	s.Pair("key", doc.Key)
	s.Pair("reason", doc.Reason)
	s.Pair("error", doc.ErrorText)
	s.Pair("error type", strings.TrimSpace(doc.ErrorType+" "+doc.ErrorCode))
	s.Pair("error group", number(doc.Error))
	s.Pair("class", doc.Class)
	s.Pair("rule", doc.Rule)
	s.Pair("attempts", number(int64(doc.Attempts)))
	if doc.Abandoned > 0 {
		s.Pair("abandoned", fmt.Sprintf("%d deliveries ended without a settlement", doc.Abandoned))
	}
	s.Pair("published", term.ISO(doc.Published.Time))
	s.Pair("first failed", term.ISO(doc.FirstFailed.Time))
	s.Pair("dead", term.ISO(doc.Dead.Time))
	s.Pair("dead by", doc.DeadBy)
	s.Pair("format", doc.Format)
	s.Pair("size", bytesText(doc.Size))
	if doc.Stub {
		s.Pair("stub", "it stands for a message that is elsewhere")
	}
	if n := doc.Redrives + doc.Sends; n > 0 {
		s.Pair("sent back", fmt.Sprintf("%s, %d of them from here", count(int64(n), "time"), doc.Sends))
	}
	if doc.Job != 0 {
		s.Pair("job", number(doc.Job))
	}
	if doc.Previous != 0 {
		s.Pair("previous", fmt.Sprintf("letter %d, which came back as this one", doc.Previous))
	}
	if doc.Next != 0 {
		s.Pair("next", fmt.Sprintf("letter %d, as which it came back", doc.Next))
	}
	s.Pair("note", doc.Note)
}

func (c changeRow) text() string {
	text := c.To
	if c.Job != 0 {
		text += fmt.Sprintf(" by job %d", c.Job)
	}
	if c.Note != "" && c.Note != c.Because {
		text += ": " + c.Note
	}
	if c.Who != "" {
		text += ", " + c.Who
	}
	if c.Because != "" {
		text += ": " + c.Because
	}
	if c.Command != "" {
		text += " (" + c.Command + ")"
	}
	return text
}

func (h headerRow) text() string {
	if h.Encoding != "" {
		return h.Encoding + ": " + h.Value
	}
	if h.Value == "" {
		return `""`
	}
	return h.Value
}

const (
	mostText = 4 << 10 // bytes of a body on a sheet
	mostHex  = 512
)

// showBody prints the body as what it is.
func (doc letterDoc) showBody(s *term.Sheet, how string) {
	if how == "none" {
		return
	}
	size, isText := bytesText(int64(len(doc.body))), utf8.Valid(doc.body)
	var laidOut bytes.Buffer
	switch {
	case len(doc.body) == 0:
		s.Title("The body is empty")
	case how == "hex" || how == "auto" && !isText:
		s.Title("Body, " + size + " in hex digits")
		shown := doc.body[:min(len(doc.body), mostHex)]
		s.Text(hex.Dump(shown))
		doc.tellCut(s, len(shown) < len(doc.body))
	case how == "auto" && json.Indent(&laidOut, doc.body, "", "  ") == nil:
		s.Title("Body, " + size + " of JSON")
		doc.showText(s, laidOut.String())
	default:
		s.Title("Body, " + size)
		doc.showText(s, string(doc.body))
	}
}

func (doc letterDoc) showText(s *term.Sheet, text string) {
	if len(text) <= mostText {
		s.Text(text)
		return
	}
	s.Text(strings.ToValidUTF8(text[:mostText], ""))
	doc.tellCut(s, true)
}

func (doc letterDoc) tellCut(s *term.Sheet, cut bool) {
	if cut {
		s.Text(fmt.Sprintf("… cut here: redrive dlq show %d --body raw > file", doc.ID))
	}
}
