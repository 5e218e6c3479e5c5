package job

import (
	"slices"

	"github.com/redrive-go/redrive/operate/store"
)

// Target is a topic that letters may be sent back to.
type Target struct {
	Broker, Topic string

	// Dead are the topics that its dead letters come from. A letter from elsewhere
	// is not sent here, whatever it says.
	Dead []string

	// Grouped says that the broker has consumer groups, each of which gets all
	// messages of the topic (Kafka). Then letters go back to the one of Groups
	// that gave them up.
	Grouped bool
	Groups  []string

	// Ordered says that messages of a key are handled in order, which a letter
	// that comes back late breaks.
	Ordered bool

	// Rate is the most letters a second. 0 means what the job says.
	Rate float64
}

// rate is the most letters a second of a job here.
func (t Target) rate(ofJob float64) float64 {
	if t.Rate > 0 {
		return min(t.Rate, ofJob)
	}
	return ofJob
}

// Targets are all topics that letters may be sent back to. What a letter says
// about where it died is a claim by whoever may write to the dead-letter topic.
type Targets []Target

// Why a job skips a letter.
const (
	SkipStub         = "stub"          // it stands for a message that is elsewhere
	SkipUnreadable   = "unreadable"    // the broker delivered what is no message
	SkipUnknownTopic = "unknown-topic" // no target, or more than one if it names none
	SkipWrongSource  = "wrong-source"  // it comes from a dead-letter topic that is not one of its topic
	SkipUnknownGroup = "unknown-group" // its group is none of the target
	SkipNoGroup      = "no-group"      // it names none: see Spec.AllGroups
	SkipRedriveLimit = "redrive-limit" // it was sent back too often: see Spec.MaxReturns
)

// destination is where a letter goes: to a group of the target, to all of them, or
// where there are no groups.
type destination struct {
	target *Target
	group  string
	all    bool
}

// Skip returns why a job would skip a letter, or "" if it would send it. The state
// of the letter is left aside.
func (ts Targets) Skip(s Spec, l store.Letter) string {
	_, skip := ts.route(s.withDefaults(), l)
	return skip
}

// route says where a letter goes, or why it does not.
func (ts Targets) route(s Spec, l store.Letter) (to destination, skip string) {
	switch {
	case l.Stub:
		return to, SkipStub
	case l.Reason == "unreadable" || l.Format == "unreadable":
		return to, SkipUnreadable
	}
	if to.target, skip = ts.target(l); skip != "" {
		return to, skip
	}
	if to.target.Grouped {
		switch {
		case l.Group == "" && !s.AllGroups:
			return to, SkipNoGroup
		case l.Group == "":
			to.all = true
		case !slices.Contains(to.target.Groups, l.Group):
			return to, SkipUnknownGroup
		default:
			to.group = l.Group
		}
	}
	if !s.Force && (l.RedriveCount >= s.MaxReturns || l.Sends >= s.MaxReturns) {
		return to, SkipRedriveLimit
	}
	return to, ""
}

// target returns the topic of a letter. One that names none belongs to the only
// topic whose dead letters come from where it was found.
func (ts Targets) target(l store.Letter) (*Target, string) {
	var found *Target
	for i := range ts {
		t := &ts[i]
		here := slices.Contains(t.Dead, l.Source)
		switch {
		case t.Broker != l.Broker:
		case l.Topic != "" && t.Topic == l.Topic && !here:
			return nil, SkipWrongSource
		case l.Topic != "" && t.Topic == l.Topic:
			return t, ""
		case l.Topic == "" && here && found != nil:
			return nil, SkipUnknownTopic
		case l.Topic == "" && here:
			found = t
		}
	}
	if found == nil {
		return nil, SkipUnknownTopic
	}
	return found, ""
}
