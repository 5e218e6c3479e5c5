package gallery

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestIncidents lets every incident happen. With -page it writes the page.
func TestIncidents(t *testing.T) {
	outcomes := make([]outcome, len(Incidents))
	if *page {
		t.Cleanup(func() {
			fmt.Print(textTable(outcomes))
			writePage(t, outcomes)
		})
	}
	for n, i := range Incidents {
		t.Run(i.Name, func(t *testing.T) {
			t.Parallel()
			r := play(t, i)
			t.Log(i.summary(r))
			for _, w := range i.Wants {
				if wrong := w.check(r); wrong != "" {
					t.Errorf("want %s: %s", w.Text, wrong)
				}
			}
			if n := len(r.Unlively); n > 0 { // a restart cures none of the incidents
				t.Errorf("/livez failed %d times, at first with: %s", n, r.Unlively[0])
			}
			if *page {
				outcomes[n] = outcome{r, t.Failed()}
			}
		})
	}
}

// play runs the incident in virtual time.
func play(t *testing.T, i Incident) (r Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = i.run(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return r
}
