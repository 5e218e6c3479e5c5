package proof

import (
	"net/http"
	"testing"
	"time"

	"github.com/redrive-go/redrive/operate/service"
)

// TestJudge tells a true story, and then the same with one thing in it that must not
// be.
func TestJudge(t *testing.T) {
	type story struct {
		task
		fate
		calls   []call
		letters int
	}
	noon := time.Now()
	for name, change := range map[string]func(*story){
		"":                          func(*story) {},
		"it has not ended":          func(s *story) { s.Status = service.Pending },
		"nobody called":             func(s *story) { s.calls = nil },
		"a call has no attempt":     func(s *story) { s.calls = append(s.calls, call{noon, 0}) },
		"an attempt had no call":    func(s *story) { s.fate.log[0].ResponseStatus = http.StatusNotFound },
		"success is called again":   func(s *story) { s.fate.log[1].ResponseStatus = http.StatusOK },
		"nothing succeeded":         func(s *story) { s.fate.log[2].ResponseStatus = http.StatusServiceUnavailable },
		"too many attempts":         func(s *story) { s.fate.log = append([]attempt{{ErrorMessage: leaseOver}}, s.fate.log...) },
		"a hole in the log":         func(s *story) { s.fate.log[1].AttemptNumber = 5 },
		"it has another key":        func(s *story) { s.IdempotencyKey = "another" },
		"it was cancelled":          func(s *story) { s.cancelled, s.Status = noon.Add(2*time.Second), service.Cancelled },
		"no letter":                 func(s *story) { s.Status = service.Exhausted },
		"a letter of what succeeds": func(s *story) { s.letters = 1 },
		"Retry-After is not obeyed": func(s *story) { s.calls[0].status, s.fate.log[0].ResponseStatus, s.calls[1].at = 429, 429, noon },
	} {
		s := &story{
			task: task{key: "key", id: "task", policy: "short"},
			fate: fate{TaskID: "task", IdempotencyKey: "key", Status: service.Succeeded, log: []attempt{
				{AttemptNumber: 1, ResponseStatus: http.StatusServiceUnavailable}, {AttemptNumber: 2, ErrorMessage: leaseOver}, {AttemptNumber: 3, ResponseStatus: http.StatusOK},
			}},
			calls: []call{{noon, http.StatusServiceUnavailable}, {noon.Add(time.Second), http.StatusOK}, {noon.Add(5 * time.Second), http.StatusOK}},
		}
		change(s)
		v := &verdict{statuses: map[service.Status]int{}}
		if v.judge(&s.task, s.fate, s.calls, s.letters, 1); (len(v.faults) == 0) != (name == "") {
			t.Errorf("%q: the judge finds %q", name, v.faults)
		}
	}
}
