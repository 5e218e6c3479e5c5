package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redrive-go/redrive/operate/store"
	"github.com/redrive-go/redrive/settings"
)

// Spec says how a job sends. The zero Spec is careful; each field says what unset
// means. It is stored with the job.
type Spec struct {
	// Rate is the most letters a second. Default 50. That of a target bounds
	// what goes there.
	Rate float64 `json:"rate"`

	// Waves are the sizes of those that go first, each after the one before has
	// passed. Default 1, 5, 25 and 100 for more than 20 letters, else none. Empty
	// but not nil means none.
	Waves []int `json:"waves"`

	// Pass is the part of a wave that has to be confirmed. Default 0.95. Beyond
	// the first waves, it is that of each stretch of some seconds.
	Pass float64 `json:"pass"`

	// Wait is how long after the last letter of a wave was sent those that have
	// not ended are waited for. Default 5 min.
	Wait time.Duration `json:"wait"`

	// MaxReturns is how often a letter may have been sent back before. Default 3.
	MaxReturns int `json:"maxReturns"`

	// Force sends those over MaxReturns, too. It needs a reason.
	Force bool `json:"force,omitempty"`

	// AllGroups sends letters that name no consumer group to their topic, where
	// every group sees them.
	AllGroups bool `json:"allGroups,omitempty"`

	// WithoutReceipts is for workers that send no receipts: a wave passes, too, if
	// no more of it than Pass allows has come back as a dead letter within Wait.
	// That takes somebody who collects.
	WithoutReceipts bool `json:"withoutReceipts,omitempty"`

	// Planned is how many letters the plan had, PlannedSkips how many letters
	// it would skip, and PlannedAt when it was made. Create sets them.
	Planned      int64     `json:"planned,omitempty"`
	PlannedSkips int64     `json:"plannedSkips,omitempty"`
	PlannedAt    time.Time `json:"plannedAt,omitzero"`
}

// small is up to how many letters go without waves.
const small = 20

func defaultWaves() []int { return []int{1, 5, 25, 100} }

// withDefaults fills in what is unset, but for the waves.
func (s Spec) withDefaults() Spec {
	if s.Rate == 0 {
		s.Rate = 50
	}
	if s.Pass == 0 {
		s.Pass = 0.95
	}
	if s.Wait == 0 {
		s.Wait = 5 * time.Minute
	}
	if s.MaxReturns == 0 {
		s.MaxReturns = 3
	}
	return s
}

// withWaves fills in the waves for a number of letters.
func (s Spec) withWaves(letters int64) Spec {
	if s.Waves == nil {
		s.Waves = []int{}
		if letters > small {
			s.Waves = defaultWaves()
		}
	}
	return s
}

const maxRate = 100_000

// validate reports all faults at once.
func (s Spec) validate() error {
	var faults []error
	wrong := func(field string, value any, fix string) {
		faults = append(faults, &settings.Error{Package: "job", Field: "Spec." + field, Problem: fmt.Sprintf("is %v", value), Fix: fix})
	}
	if !(s.Rate > 0 && s.Rate <= maxRate) {
		wrong("Rate", s.Rate, fmt.Sprintf("use more than 0 and at most %d letters a second", maxRate))
	}
	if slices.ContainsFunc(s.Waves, func(n int) bool { return n < 1 }) {
		wrong("Waves", s.Waves, "each takes one letter or more")
	}
	if !(s.Pass > 0 && s.Pass <= 1) {
		wrong("Pass", s.Pass, "use a part of 1, such as 0.95")
	}
	if s.Wait < time.Second {
		wrong("Wait", s.Wait, "use a second or more")
	}
	if s.MaxReturns < 1 {
		wrong("MaxReturns", s.MaxReturns, "use 1 or more, or Force")
	}
	return errors.Join(faults...)
}

// SpecOf returns the Spec that a job was created with.
func SpecOf(j store.Job) (s Spec, err error) {
	if err := json.Unmarshal(j.Spec, &s); err != nil {
		return s, fmt.Errorf("job %d: what it was created with cannot be read: cancel it, and create another: %w", j.ID, err)
	}
	if err := s.validate(); err != nil {
		return s, fmt.Errorf("job %d: %w", j.ID, err)
	}
	return s, nil
}

// encode puts a valid Spec into the row of a job.
func (s Spec) encode() []byte {
	b, _ := json.Marshal(s) // numbers and truths always can be
	return b
}

// Bounds of a stretch of letters beyond the first waves, and of a batch: what is
// sent in one call, and may be there twice after a crash.
const (
	minStretch = 100
	maxStretch = 1000
	maxBatch   = 500
)

// stretch is how many letters are judged together beyond the first waves: those of
// 10 seconds.
func (s Spec) stretch() int { return bound(10*s.Rate, minStretch, maxStretch) }

// batch is how many letters are sent at once at a rate: those of a fifth of a
// second.
func batch(rate float64) int { return bound(rate/5, 1, maxBatch) }

func bound(n float64, low, high int) int {
	return min(max(int(math.Ceil(n)), low), high)
}
