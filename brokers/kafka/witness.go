package kafka

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
)

// witness is a record below the low-water mark, and the time that its producer
// gave it. A partition that has another time there is another log than the one
// that was committed for. The zero value is none.
type witness struct {
	offset, time int64 // time in Unix milliseconds
}

func witnessOf(r *record) witness {
	if ms := r.time.UnixMilli(); ms > 0 {
		return witness{r.offset, ms}
	}
	return witness{}
}

const witnessMark = "w"

// text is what the metadata of a commit of low says of w: "w", offset, time and
// low with dots in between, and a semicolon. It is empty for none.
func (w witness) text(low int64) string {
	if w == (witness{}) {
		return ""
	}
	return witnessMark + strconv.FormatInt(w.offset, 36) + "." + strconv.FormatInt(w.time, 36) + "." + strconv.FormatInt(low, 36) + ";"
}

// cutWitness takes the witness off the front of the metadata of a commit of
// low. What cannot be read is none, and so is what was written for another
// offset: a tool that translates offsets for another cluster copies it.
func cutWitness(text string, low int64) (w witness, rest string) {
	marked, ok := strings.CutPrefix(text, witnessMark)
	if !ok {
		return witness{}, text
	}
	head, rest, ended := strings.Cut(marked, ";")
	offset, head, _ := strings.Cut(head, ".")
	ms, at, _ := strings.Cut(head, ".")
	var errs [2]error
	w.offset, errs[0] = strconv.ParseInt(offset, 36, 64)
	w.time, errs[1] = strconv.ParseInt(ms, 36, 64)
	if !ended || errors.Join(errs[:]...) != nil || w.offset < 0 || w.time <= 0 || at != strconv.FormatInt(low, 36) {
		return witness{}, rest
	}
	return w, rest
}

// testify has the candidate become the witness when the low-water mark is past
// it, and returns the witness. mu is held.
func (r *reader) testify() witness {
	if r.candidate != (witness{}) && r.candidate.offset < r.progress.lowWater() {
		r.witness, r.candidate = r.candidate, witness{}
	}
	return r.witness
}

// verify looks for the witness, or before there is one for its candidate. In another log everything is new: the reader
// begins with it, or ends if it has begun with the old one. A
// witness that is not there any more, as logs are deleted and compacted, tells
// nothing.
func (r *reader) verify(ctx context.Context) error {
	r.mu.Lock()
	stored := r.testify()
	w, offset, begun := cmp.Or(stored, r.candidate), r.progress.lowWater(), r.begun
	r.mu.Unlock()
	if w == (witness{}) {
		return nil
	}
	got, err := r.source.fetches.get(ctx, want{r.partition, w.offset, 1}, r.room(), true)
	if _, out := errors.AsType[*rangeError](err); out {
		return nil
	}
	if err != nil || len(got.records) == 0 || got.records[0].offset != w.offset || witnessOf(got.records[0]) == w {
		return err
	}
	alarm := &rangeError{partition: r.partition, offset: offset, first: r.has.first, last: got.highWater, anew: true}
	if begun {
		if stored == (witness{}) { // or else the next reader finds the same
			r.source.alarm(alarm)
		}
		r.end(alarm)
		return alarm
	}
	r.source.alarm(alarm)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = commitment{offset: -1}
	r.resume(r.has.first, "")
	if r.delayed != nil {
		r.delayed.target = r.has.last
	}
	return nil
}
