package kafka

import "testing"

// A fetch is answered after its reader has gone on to another offset, as after a pause:
// the answer is not for the new request, which stays.
func TestLateAnswerIsForNobody(t *testing.T) {
	first := partition{"orders", 0}
	answer := func() *fetchAnswer { return &fetchAnswer{FetchResponse: answerWith([]byte("records"))} }
	l := &leader{pending: make(map[partition]*request), owed: make(map[partition]bool), more: make(chan struct{}, 1), late: make(chan struct{}, 1)}
	r := &request{want: want{first, 5, 100}, found: make(chan found, 1)}
	l.add(r)
	l.waiting = map[partition]want{first: {first, 3, 100}}
	l.answerTo(&l.waiting, answer(), nil)
	if len(r.found) != 0 || l.pending[first] != r {
		t.Error("a request for offset 5 is answered with records from offset 3 on")
	}
	l.waiting = map[partition]want{first: {first, 5, 200}}
	l.answerTo(&l.waiting, answer(), nil)
	if got := <-r.found; got.part == nil || l.pending[first] != nil {
		t.Errorf("the request is answered with %+v, want its records", got)
	}
}
