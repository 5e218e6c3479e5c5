package consumer

import (
	"errors"
	"testing"

	"github.com/redrive-go/redrive/classify"
)

func TestOnlyThePipelineKnowsLossAndShutdown(t *testing.T) {
	for _, class := range []classify.Class{classify.ClassLost, classify.ClassShutdown} {
		rule := func(err error) error {
			return classify.With(err, classify.Verdict{Class: class, Rule: "mine", Code: "7"})
		}
		got := verdict(errors.New("says so"), nil, []classify.Rule{rule})
		want := classify.Verdict{Class: classify.ClassUnknown, MaxAttempts: 6, Reason: "unclassified", Rule: "mine", Code: "7"}
		if got != want {
			t.Errorf("a rule that says %s while lease and worker are fine: %+v, want %+v", class, got, want)
		}
	}
}
