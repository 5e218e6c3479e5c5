package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

const (
	// headBytes is how much of a body is beside the rest of the content. It is
	// what searches look at.
	headBytes = 64 << 10

	// partBytes is how large the pieces of the rest are, so that nobody needs
	// memory for all of it who does not want it.
	partBytes = 1 << 20
)

// saved is a message as it is stored, but for its body: as JSON. Texts that JSON
// cannot hold are in base64 after a prefix.
type saved struct {
	ID          string     `json:"id,omitempty"`
	Topic       string     `json:"topic,omitempty"`
	Key         string     `json:"key,omitempty"`
	Headers     [][]string `json:"headers,omitempty"` // name, value, and type if there is one
	PublishedAt int64      `json:"publishedAt,omitempty"`
}

const notText = "base64:"

func saveText(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, notText) {
		return s
	}
	return notText + base64.StdEncoding.EncodeToString([]byte(s))
}

func loadText(s string) string {
	if rest, ok := strings.CutPrefix(s, notText); ok {
		if b, err := base64.StdEncoding.DecodeString(rest); err == nil {
			return string(b)
		}
	}
	return s
}

func save(m brokers.Message) ([]byte, error) {
	v := saved{
		ID: saveText(m.ID), Topic: saveText(m.Topic), Key: saveText(m.Key), PublishedAt: sqldb.Millis(m.PublishedAt),
		Headers: make([][]string, len(m.Headers)),
	}
	for i, h := range m.Headers {
		v.Headers[i] = []string{saveText(h.Name), saveText(h.Value)}
		if h.Type != "" {
			v.Headers[i] = append(v.Headers[i], saveText(h.Type))
		}
	}
	return json.Marshal(v)
}

func load(b, body []byte) (brokers.Message, error) {
	var v saved
	if err := json.Unmarshal(b, &v); err != nil {
		return brokers.Message{}, fmt.Errorf("%w (its content cannot be read: %w)", ErrDamaged, err)
	}
	m := brokers.Message{
		ID: loadText(v.ID), Topic: loadText(v.Topic), Key: loadText(v.Key), PublishedAt: sqldb.TimeOf(v.PublishedAt),
	}
	if len(body) > 0 {
		m.Body = body
	}
	for _, h := range v.Headers {
		h = append(h, "", "", "")
		m.Headers = append(m.Headers, brokers.Header{Name: loadText(h[0]), Value: loadText(h[1]), Type: loadText(h[2])})
	}
	return m, nil
}

// content is what a letter is stored as besides its row.
type content struct {
	raw, entry []byte
	body       []byte
	own        []byte // the body of the entry, if it is another
}

// contentOf saves a message and its entry. The entry of a dead letter of ours is
// in the message already, and that it is was seen when it was decoded; that of
// another is saved as if it were one of ours.
func contentOf(format string, raw brokers.Message, entry dlq.Entry) (c content, err error) {
	if c.raw, err = save(raw); err != nil {
		return c, err
	}
	c.body, c.entry = raw.Body, []byte{}
	if format == redrive {
		return c, nil
	}
	if c.entry, err = save(entry.Encode(math.MaxInt)); err == nil && !bytes.Equal(entry.Message.Body, raw.Body) {
		c.own = entry.Message.Body
	}
	return c, err
}

// rows are those of the tables contents and parts.
func (c content) rows(letter int64) (contents []any, parts [][]any) {
	head := c.body[:min(len(c.body), headBytes)]
	add := func(own bool, rest []byte) {
		for n := 0; len(rest) > 0; n++ {
			size := min(len(rest), partBytes)
			parts = append(parts, []any{letter, own, n, rest[:size]})
			rest = rest[size:]
		}
	}
	add(false, c.body[len(head):])
	add(true, c.own)
	return []any{letter, c.raw, c.entry, notNil(head), c.own != nil}, parts
}

// notNil makes b empty rather than null.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func (c conn) content(ctx context.Context, letter int64) (raw brokers.Message, entry dlq.Entry, err error) {
	var saved content
	var own bool
	found, err := c.Get(ctx, "select raw, entry, body, own from contents where letter = ?", []any{letter}, &saved.raw, &saved.entry, &saved.body, sqldb.IntoBool(&own))
	if err != nil {
		return raw, entry, err
	}
	if !found {
		return raw, entry, fmt.Errorf("letter %d: %w", letter, ErrNotFound)
	}
	err = c.Each(ctx, "select own, data from parts where letter = ? order by own, n", []any{letter}, func(scan func(...any) error) error {
		var of bool
		var data []byte
		err := scan(sqldb.IntoBool(&of), &data)
		if of {
			saved.own = append(saved.own, data...)
		} else {
			saved.body = append(saved.body, data...)
		}
		return err
	})
	if err != nil {
		return raw, entry, err
	}
	if raw, err = load(saved.raw, saved.body); err != nil {
		return raw, entry, err
	}
	if len(saved.entry) == 0 {
		entry, err = dlq.Decode(raw)
		return raw, entry, err
	}
	if !own {
		saved.own = saved.body
	}
	envelope, err := load(saved.entry, saved.own)
	if err != nil {
		return raw, entry, err
	}
	entry, err = dlq.Decode(envelope)
	return raw, entry, err
}
