package store

import (
	"bytes"
	"context"
	"slices"
	"strconv"
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
	// maxMerged is how many clusters are read in step, newest first. With more,
	// all letters of a stretch of time are looked at.
	maxMerged = 100

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
		return list, err
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

// order and past are the direction in SQL.
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

func (s search) sort(list []key) {
	slices.SortFunc(list, func(a, b key) int {
		if s.rising == a.before(b) {
			return -1
		}
		return 1
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
	of := f.ofCluster()
	exact := len(f.IDs) > 0 || f.MessageID != ""
	if (len(of.sql) > 0 || len(f.States) > 0) && !exact {
		clusters, err := c.clustersOf(ctx, f)
		if err != nil {
			return results{}, err
		}
		if len(clusters) <= maxMerged {
			return c.merge(ctx, f, s, clusters)
		}
	}
	return c.scan(ctx, f, s)
}

// clustersOf returns the clusters that have letters which f may select; more
// than maxMerged if there are too many to merge.
func (c conn) clustersOf(ctx context.Context, f Filter) (ids, error) {
	of := f.ofCluster()
	f.hasLetters(&of)
	return c.numbers(ctx, selectClusters(of)+" limit "+strconv.Itoa(maxMerged+1), of.args...)
}

func selectClusters(of conditions) string {
	return "select c.id from clusters c join topics t on t.id = c.topic where " + of.String()
}

// merge takes the first letters of each cluster and state, which an index has
// in order, and of those the first.
func (c conn) merge(ctx context.Context, f Filter, s search, clusters ids) (results, error) {
	states := f.States
	if len(states) == 0 {
		states = States()
	}
	of := f.ofLetter().with(s.past(), s.from.at, s.from.id)
	query := `select (select string_agg(n.at || '.' || n.id, ' ') from (
			select l.at, l.id from letters l where l.cluster = c.v and l.state = s.v and ` + of.String() + s.order() + `limit ` + strconv.Itoa(s.limit+1) + `
		) n) from (IDS) c cross join (IDS) s`
	var found []key
	err := c.each(ctx, query, append(of.args, clusters, states), func(scan func(...any) error) error {
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

// scan looks at letters one after the other, at no more than maxLooked.
func (c conn) scan(ctx context.Context, f Filter, s search) (results, error) {
	base := f.ofLetter().with(s.past(), s.from.at, s.from.id)
	var end key
	ends, err := c.get(ctx, "select l.at, l.id from letters l where "+base.String()+s.order()+"limit 1 offset "+strconv.Itoa(maxLooked-1),
		base.args, &end.at, &end.id)
	if err != nil {
		return results{}, err
	}
	of := base
	if ends {
		of = of.with("not "+s.past(), end.at, end.id)
	}
	if clusters := f.ofCluster(); len(clusters.sql) > 0 {
		of = of.with("+l.cluster in ("+selectClusters(clusters)+")", clusters.args...)
	}
	if len(f.States) > 0 {
		of = of.with("+l.state in (IDS)", f.States)
	}
	var found []key
	query := "select l.at, l.id from letters l where " + of.String() + s.order() + "limit " + strconv.Itoa(s.limit+1)
	err = c.each(ctx, query, of.args, func(scan func(...any) error) error {
		var k key
		err := scan(&k.at, &k.id)
		found = append(found, k)
		return err
	})
	r := s.cut(found)
	if ends && !r.more {
		r.more, r.next, r.looked = true, end, maxLooked
	}
	return r, err
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
	found := map[int64]bool{}
	query := "select l.id, l.error_text, c.raw, c.body from letters l join contents c on c.letter = l.id where l.id in (IDS)"
	err := c.each(ctx, query, []any{list}, func(scan func(...any) error) error {
		var id int64
		var text, raw, body []byte
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
	m, err := load(raw, nil)
	if err != nil {
		return false, err
	}
	for _, header := range m.Headers {
		if header.Name == h.Name && (h.Value == nil || header.Value == *h.Value) {
			return true, nil
		}
	}
	return false, nil
}
