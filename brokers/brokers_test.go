package brokers

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestHeaders(t *testing.T) {
	shared := Headers{{Name: "a", Value: "1"}, {Name: "b", Value: "2"}, {Name: "a", Value: "3"}}
	if got := shared.Get("a"); got != "3" {
		t.Errorf("Get of a repeated name = %q, want the last value %q", got, "3")
	}
	if got := shared.Get("A"); got != "" {
		t.Errorf("names are case-sensitive, yet Get(%q) = %q", "A", got)
	}
	if _, ok := shared.Lookup("absent"); ok {
		t.Error("Lookup found a name that is not there")
	}
	want := Headers{{Name: "b", Value: "2"}, {Name: "a", Value: "4"}}
	if got := shared.With("a", "4"); !reflect.DeepEqual(got, want) {
		t.Errorf("With = %v, want %v", got, want)
	}
	if len(shared) != 3 || shared[0].Value != "1" {
		t.Errorf("With changed its receiver: %v", shared)
	}
	if got := Headers(nil).With("a", "1").Get("a"); got != "1" {
		t.Errorf("With on nil headers: Get = %q, want %q", got, "1")
	}
}

func TestActionString(t *testing.T) {
	for action, want := range map[Action]string{Ack: "ack", Retry: "retry", Release: "release", Reject: "reject", 99: "invalid action"} {
		if got := action.String(); got != want {
			t.Errorf("Action(%d) = %q, want %q", action, got, want)
		}
	}
}

func TestPublishError(t *testing.T) {
	cause := errors.New("disk full")
	failed := map[int]error{7: cause, 2: ErrUnknownOutcome, 3: cause, 9: cause}
	err := fmt.Errorf("dead-letter: %w", &PublishError{Topic: "orders.dead", Failed: failed})
	if !errors.Is(err, cause) || !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("errors.Is does not reach the causes of %v", err)
	}
	want := `publish to "orders.dead": 4 not confirmed, keep the originals; message 2: ` +
		ErrUnknownOutcome.Error() + `; message 3: disk full; message 7: disk full; and 1 more`
	if !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Error = %q, want it to end in %q", err, want)
	}
}

func TestNotFoundIsMisconfigured(t *testing.T) {
	err := fmt.Errorf("open: %w", ErrNotFound)
	if !errors.Is(err, ErrNotFound) || !errors.Is(err, ErrMisconfigured) {
		t.Errorf("%v is not both ErrNotFound and ErrMisconfigured", err)
	}
	if errors.Is(ErrMisconfigured, ErrNotFound) {
		t.Error("every ErrMisconfigured is ErrNotFound")
	}
}
