package kafka

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Errors that repeat do not keep an alarm from being reported: there may be one for
// each partition.
func TestNoAlarmIsDropped(t *testing.T) {
	var f failures
	errRepeated := errors.New("the fetch failed")
	for range 10 * mostFailures {
		f.add(errRepeated, false)
	}
	for n := range 10 {
		f.add(&rangeError{partition: partition{"orders", n}, offset: 5, first: 8, last: 10}, true)
	}
	got := fmt.Sprint(f.take())
	for n := range 10 {
		if want := fmt.Sprintf("partition %d of topic", n); !strings.Contains(got, want) {
			t.Errorf("no alarm for partition %d in:\n%s", n, got)
		}
	}
	if n := strings.Count(got, errRepeated.Error()); n != mostFailures {
		t.Errorf("%d of the other errors are reported, want %d", n, mostFailures)
	}
	if err := f.take(); err != nil {
		t.Errorf("reported again: %v", err)
	}
}
