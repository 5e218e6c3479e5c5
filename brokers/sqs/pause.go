package sqs

import (
	"slices"
	"time"
)

const (
	// leastKept is how long a pause leaves the buffer as it is: longer than a
	// topic is without room for moments.
	leastKept = time.Second

	// longestKept is the same after longer pauses.
	longestKept = 10 * time.Second
)

// Pause stops polls of topics, and what they have in the buffer from being
// handed out. Polls that are open go on.
func (s *source) Pause(topics ...string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	resumed := false
	for _, f := range s.feeds {
		switch paused := slices.Contains(topics, f.topic); {
		case paused && !f.paused:
			f.paused, f.since = true, now
		case !paused && f.paused:
			f.resume(now)
			resumed = true
		}
	}
	if resumed {
		s.woken.Wake()
	}
}

// resume ends a pause. The next one leaves the buffer as it is for twice as
// long: a topic that has no room for seconds, again and again, would otherwise
// fetch the same messages each time, only to give them back, and SQS counts
// that. After a pause that was too long for the buffer, one poll at a time finds
// out how much can be handed out. mu is held.
func (f *feed) resume(now time.Time) {
	past := now.Sub(f.since)
	f.paused = false
	if past >= f.keep {
		f.pace.restart()
	}
	f.keep = min(max(2*past, leastKept), longestKept)
}

// unwanted reports whether what is buffered has to go back as the topic is
// paused. While polls of it are open, they would receive it once more. mu is held.
func (f *feed) unwanted(now time.Time) bool {
	return f.paused && f.open == 0 && now.Sub(f.since) >= f.keep
}
