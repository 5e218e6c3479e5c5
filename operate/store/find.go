package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/redrive-go/redrive/brokers"
)

// Listing is a page of letters.
type Listing struct {
	Letters []Letter

	// Next goes on after the page: see Page.After. It is empty at the end. A
	// page that is not full is no end: it has looked at so many letters.
	Next string

	// Looked is how many letters the page has looked at, at most.
	Looked int
}

// Bounds of the work for a page.
const (
	// maxMerged is how many letters are taken at most of clusters that are read
	// in step. Where that is not enough, all letters of a stretch of time are
	// looked at.
	maxMerged = 20_000

	// maxLooked is how many letters such a stretch has.
	maxLooked = 20_000

	// maxRead is how many letters a search reads, and readAtOnce in one step.
	maxRead    = 2_000
	readAtOnce = 200
)

// Letters returns letters that f selects, the latest death first. Pages do not
// shift while letters arrive. The work for a page is bounded, so one may have
// few letters, or none, and yet not be the last.
func (s *Store) Letters(ctx context.Context, f Filter, p Page) (list Listing, err error) {
	from, err := p.from()
	if err != nil {
		return list, s.db.Failed(err)
	}
	err = s.read(ctx, func(tx conn) error {
		found, err := tx.find(ctx, f, search{from: from, limit: p.limit()})
		if err != nil {
			return err
		}
		list.Looked = found.looked
		if found.more {
			list.Next = found.next.String()
		}
		list.Letters, err = tx.lettersAt(ctx, found.keys)
		return err
	})
	return list, err
}

// lettersAt reads letters and keeps their order.
func (c conn) lettersAt(ctx context.Context, at []key) ([]Letter, error) {
	byID, err := c.letters(ctx, idsOf(at))
	if err != nil {
		return nil, err
	}
	list := make([]Letter, len(at))
	for i, k := range at {
		list[i] = byID[k.id]
	}
	return list, nil
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
	keys   []key
	next   key
	more   bool
	looked int
}

// order, past and until are the direction in SQL.
func (s search) order() string {
	if s.rising {
		return " order by l.at, l.id "
	}
	return " order by l.at desc, l.id desc "
}

func (s search) past() string {
	if s.rising {
		return "(l.at, l.id) > (?, ?)"
	}
	return "(l.at, l.id) < (?, ?)"
}

func (s search) until() string {
	if s.rising {
		return "(l.at, l.id) <= (?, ?)"
	}
	return "(l.at, l.id) >= (?, ?)"
}

func (s search) sort(list []key) {
	slices.SortFunc(list, func(a, b key) int {
		if !s.rising {
			a, b = b, a
		}
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id))
	})
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

// findRows looks for letters by what is in their rows.
func (c conn) findRows(ctx context.Context, f Filter, s search) (results, error) {
	switch {
	case f.MessageID != "":
		blocks, err := c.blocks(ctx)
		if err != nil {
			return results{}, err
		}
		return c.merge(ctx, f.ofRow(), s, fmt.Sprintf("l.id / %d = b.v", perBlock), blocks)
	case len(f.IDs) == 0 && (len(f.ofCluster().sql) > 0 || len(f.States) > 0):
		most := maxMerged / (s.limit + 1)
		buckets, err := c.bucketsOf(ctx, f, most)
		if err != nil {
			return results{}, err
		}
		if len(buckets) <= most {
			return c.merge(ctx, f.ofLetter(), s, fmt.Sprintf("l.cluster = b.v / %d and l.state = b.v %% %[1]d", perCluster), buckets)
		}
	}
	return c.scan(ctx, f, s)
}

// bucketsOf returns where letters are that f may select: clusters and states that
// have letters, each as one number. If there are more than most, it returns more
// than most of them.
func (c conn) bucketsOf(ctx context.Context, f Filter, most int) (buckets ids, err error) {
	of := f.ofCluster()
	f.hasLetters(&of)
	query := "select c.id, " + counters("c.") + from(of) + " limit " + strconv.Itoa(most+1)
	err = c.Each(ctx, query, of.args, func(scan func(...any) error) error {
		var cluster int64
		var counts Counts
		err := scan(append([]any{&cluster}, counts.dest()...)...)
		for _, s := range intersection(f.States, States()) {
			if counts.Of(s) > 0 {
				buckets = append(buckets, cluster*perCluster+s.code())
			}
		}
		return err
	})
	return buckets, err
}

// perCluster is how far apart the numbers of clusters are in those of buckets.
const perCluster = 16

// perBlock is how many letters are in a block of the index by message ID, which
// knows the number, too.
const perBlock = 4096

// blocks returns the numbers of all blocks.
func (c conn) blocks(ctx context.Context) (list ids, err error) {
	var first, last int64
	// Each alone is a look into an index; both in one look are a scan of all letters.
	const ends = "select coalesce((select min(id) from letters), 0), coalesce((select max(id) from letters), -1)"
	_, err = c.Get(ctx, ends, nil, &first, &last)
	for n := first / perBlock; n <= last/perBlock; n++ {
		list = append(list, n)
	}
	return list, err
}

func selectClusters(of conditions) string { return "select c.id" + from(of) }

func from(of conditions) string {
	return " from clusters c join topics t on t.id = c.topic where " + of.String()
}

// merge takes the first letters of each bucket, b, which an index has in order,
// and of those the first.
func (c conn) merge(ctx context.Context, of conditions, s search, in string, buckets ids) (results, error) {
	of = of.with(s.past(), s.from.at, s.from.id)
	query := fmt.Sprintf(`select (select string_agg(n.at || '.' || n.id, ' ') from (
			select l.at, l.id from letters l where %s and %s %s limit %d
		) n) from (IDS) b`, in, of.String(), s.order(), s.limit+1)
	var found []key
	err := c.Each(ctx, query, append(of.args, buckets), func(scan func(...any) error) error {
		var list []byte
		if err := scan(&list); err != nil {
			return err
		}
		for place := range bytes.FieldsSeq(list) {
			k, err := keyOf(string(place))
			if err != nil {
				return err
			}
			found = append(found, k)
		}
		return nil
	})
	s.sort(found)
	return s.cut(found), err
}

// cut makes a page of keys that are in order and may be one too many.
func (s search) cut(found []key) (r results) {
	if r.more = len(found) > s.limit; r.more {
		found = found[:s.limit]
		r.next = found[s.limit-1]
	}
	r.keys, r.looked = found, len(found)
	return r
}

// scan looks at letters one after the other, at no more than maxLooked: first at
// some, and at more the fewer f selects.
func (c conn) scan(ctx context.Context, f Filter, s search) (results, error) {
	of := f.ofRow()
	var found []key
	for looked, n := 0, min(5*s.limit, maxLooked); ; n = min(4*n, maxLooked-looked) {
		between, end, ends, err := c.stretchOf(ctx, f, s, n)
		if err != nil {
			return results{}, err
		}
		more, err := c.keys(ctx, of.with(between.String(), between.args...), s.order()+"limit "+strconv.Itoa(s.limit+1-len(found)))
		if err != nil {
			return results{}, err
		}
		found = append(found, more...)
		looked += n
		if len(found) > s.limit || !ends {
			r := s.cut(found)
			r.looked = looked
			return r, nil
		}
		if s.from = end; looked == maxLooked {
			return results{keys: found, next: end, more: true, looked: looked}, nil
		}
	}
}

// stretchOf returns the conditions for the next n letters, and the last of them
// unless there are fewer.
func (c conn) stretchOf(ctx context.Context, f Filter, s search, n int) (between conditions, end key, ends bool, err error) {
	between = f.ofLetter().with(s.past(), s.from.at, s.from.id)
	last, err := c.keys(ctx, between, s.order()+"limit 1 offset "+strconv.Itoa(n-1))
	if err != nil || len(last) == 0 {
		return between, key{}, false, err
	}
	between.and(s.until(), last[0].at, last[0].id)
	return between, last[0], true, nil
}

// keys returns the places of letters.
func (c conn) keys(ctx context.Context, of conditions, rest string) (found []key, err error) {
	err = c.Each(ctx, "select l.at, l.id from letters l where "+of.String()+rest, of.args, func(scan func(...any) error) error {
		var k key
		err := scan(&k.at, &k.id)
		found = append(found, k)
		return err
	})
	return found, err
}

// findContent looks for letters by what is in them.
func (c conn) findContent(ctx context.Context, f Filter, s search) (results, error) {
	all := results{more: true, next: s.from}
	for all.more && all.looked < maxRead && len(all.keys) < s.limit {
		page, err := c.findRows(ctx, f, search{from: all.next, rising: s.rising, limit: readAtOnce})
		if err != nil {
			return results{}, err
		}
		matches, err := c.matches(ctx, f, idsOf(page.keys))
		if err != nil {
			return results{}, err
		}
		all.looked += page.looked
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
	body := "EMPTY" // bodies are large
	if f.Text != "" {
		body = "c.body"
	}
	found := map[int64]bool{}
	query := "select l.id, l.error_text, c.raw, " + body + " from letters l join contents c on c.letter = l.id where l.id in (IDS)"
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
