package kafka

import (
	"bytes"
	"testing"
)

// A block of records serves others when each of its records is free, and no
// sooner.
func TestRecordsServeAgainOnceAllAreSettled(t *testing.T) {
	var s slab
	var records []*record
	for i := range int64(slabRecords + 2) {
		r := s.next()
		r.offset, r.value = i, []byte("x")
		records = append(records, r)
	}
	s.close()
	full, rest := records[:slabRecords], records[slabRecords:]
	for _, r := range full[1:] {
		r.free()
	}
	rest[0].free()
	if full[0].value == nil || full[1].value == nil || rest[1].value == nil {
		t.Fatal("a block is cleared while a record of it is in use")
	}
	full[0].free()
	rest[1].free()
	if full[1].value != nil || rest[1].block != nil {
		t.Error("a block whose records are all free is not cleared")
	}
	(&record{}).free() // one that has memory of its own
}

func TestSparesAreBoundedAndLetGo(t *testing.T) {
	var s spares
	answer := func(size int) *bytes.Buffer { return bytes.NewBuffer(make([]byte, size)) }
	for range 10 {
		s.put(answer(mostAnswer / 4))
	}
	if len(s.free) != 4 || s.size > mostAnswer {
		t.Fatalf("%d spares of %d bytes are kept, want 4", len(s.free), s.size)
	}
	if b := s.get(); b.Len() != 0 || b.Cap() < mostAnswer/4 || len(s.free) != 3 {
		t.Errorf("got %d bytes in a buffer of %d; %d are left", b.Len(), b.Cap(), len(s.free))
	}
	for range idleAnswers - 1 {
		s.put(answer(100))
	}
	if len(s.free) == 0 {
		t.Error("a few small answers let the spares go")
	}
	s.put(answer(100))
	if s.size != 0 || len(s.free) != 0 {
		t.Errorf("%d spares of %d bytes are kept while little comes", len(s.free), s.size)
	}
}
