package gallery

import (
	"testing"
	"testing/synctest"

	"github.com/redrive-go/redrive/consumer"
)

func TestIncidents(t *testing.T) {
	for _, i := range Incidents {
		t.Run(i.Name, func(t *testing.T) {
			t.Parallel()
			r := play(t, i)
			t.Logf("%s", i.summary(r))
			for _, w := range i.Wants {
				if wrong := w.check(r); wrong != "" {
					t.Errorf("want %s: %s", w.Text, wrong)
				}
			}
		})
	}
}

// play runs the incident in virtual time.
func play(t *testing.T, i Incident, changes ...func(*consumer.Config)) (r Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = i.Run(t.Context(), changes...); err != nil {
			t.Fatal(err)
		}
	})
	return r
}
