package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/operate/internal/sqldb"
)

// Listing is a page of letters.
type Listing struct {
	Letters []Letter

	// Next goes on after the page: see Page.After. It is empty at the end.
	Next string
}

// Bounds of the work for a page that is selected by content.
const (
	maxRead    = 2_000 // letters that are read at most
	readAtOnce = 200
)

// Letters returns letters that f selects, the latest death first. Pages do not
// shift while letters arrive. A page that f selects by content reads at most 2,000
// letters, so it may have few, or none, and yet not be the last.
func (s *Store) Letters(ctx context.Context, f Filter, p Page) (list Listing, err error) {
	err = s.readPage(ctx, p, func(tx conn, from key) error {
		found, err := tx.find(ctx, f, search{from: from, limit: p.limit()})
		if err != nil {
			return err
		}
		if found.more {
			list.Next = found.next.String()
		}
		list.Letters, err = tx.letters(ctx, idsOf(found.keys))
		return err
	})
	return list, err
}

func idsOf(at []key) ids {
	list := make(ids, len(at))
	for i, k := range at {
		list[i] = k.id
	}
	return list
}

// search is a direction in which to look for letters.
type search struct {
	from   key  // exclusive
	rising bool // oldest first, else latest first
	limit  int
}

// results are the places of letters, and where to go on.
type results struct {
	keys []key
	next key
	more bool
}

// find looks for letters that f selects.
func (c conn) find(ctx context.Context, f Filter, s search) (results, error) {
	if err := f.validate(); err != nil {
		return results{}, err
	}
	if f.readsContent() {
		return c.findContent(ctx, f, s)
	}
	return c.findRows(ctx, f, s)
}

// findRows looks for letters by what is in their rows: it walks the index by time.
func (c conn) findRows(ctx context.Context, f Filter, s search) (r results, err error) {
	past, order := "(l.at, l.id) < (?, ?)", "l.at desc, l.id desc"
	if s.rising {
		past, order = "(l.at, l.id) > (?, ?)", "l.at, l.id"
	}
	of := f.ofRow()
	of.and(past, s.from.at, s.from.id)
	query := "select l.at, l.id from letters l where " + of.String() + " order by " + order + " limit " + strconv.Itoa(s.limit+1)
	r.keys, err = sqldb.All(ctx, c.Tx, query, of.args, func(k *key) []any { return []any{&k.at, &k.id} })
	if r.more = len(r.keys) > s.limit; r.more {
		r.keys = r.keys[:s.limit]
		r.next = r.keys[s.limit-1]
	}
	return r, err
}

// findContent looks for letters by what is in them.
func (c conn) findContent(ctx context.Context, f Filter, s search) (results, error) {
	all := results{more: true, next: s.from}
	for read := 0; all.more && read < maxRead && len(all.keys) < s.limit; {
		page, err := c.findRows(ctx, f, search{from: all.next, rising: s.rising, limit: readAtOnce})
		if err != nil {
			return results{}, err
		}
		matches, err := c.matches(ctx, f, idsOf(page.keys))
		if err != nil {
			return results{}, err
		}
		read += len(page.keys)
		all.more, all.next = page.more, page.next
		for i, k := range page.keys {
			if !matches[k.id] {
				continue
			}
			if all.keys = append(all.keys, k); len(all.keys) == s.limit {
				all.more, all.next = page.more || i < len(page.keys)-1, k
				break
			}
		}
	}
	return all, nil
}

// matches reports which letters have what f looks for in their content.
func (c conn) matches(ctx context.Context, f Filter, list ids) (map[int64]bool, error) {
	body := "''" // bodies are large
	if f.Text != "" {
		body = "c.body"
	}
	found := map[int64]bool{}
	query := "select l.id, l.error_text, c.raw, " + body + " from letters l join contents c on c.letter = l.id where l.id in (?)"
	err := c.Each(ctx, query, []any{list}, func(scan func(...any) error) error {
		var id int64
		var text, raw, body sql.RawBytes
		if err := scan(&id, &text, &raw, &body); err != nil {
			return err
		}
		if f.Text != "" && !bytes.Contains(text, []byte(f.Text)) && !bytes.Contains(body, []byte(f.Text)) {
			return nil
		}
		ok, err := f.Header.matches(raw)
		found[id] = ok
		return err
	})
	return found, err
}

func (h HeaderFilter) matches(raw []byte) (bool, error) {
	if h.Name == "" {
		return true, nil
	}
	name, _ := json.Marshal(saveText(h.Name)) // texts always can be
	if !bytes.Contains(raw, name) {
		return false, nil
	}
	m, err := load(raw, nil)
	return slices.ContainsFunc(m.Headers, func(header brokers.Header) bool {
		return header.Name == h.Name && (h.Value == nil || header.Value == *h.Value)
	}), err
}
