package consumer

// lanes keep messages of one key in order: one of a key is under way, the
// others wait. A key without any has no entry.
type lanes map[laneKey][]*run

type laneKey struct{ topic, key string }

func (r *run) lane() laneKey { return laneKey{r.delivery.Message.Topic, r.delivery.Message.Key} }

// enter reports whether r may go on. If not, next or clear returns it later.
func (l lanes) enter(r *run) bool {
	if r.delivery.Message.Key == "" {
		return true
	}
	waiting, busy := l[r.lane()]
	if busy {
		l[r.lane()] = append(waiting, r)
		return false
	}
	r.laned = true
	l[r.lane()] = nil
	return true
}

// next gives the lane of r to the run that has waited longest, nil if none
// has.
func (l lanes) next(r *run) *run {
	waiting := l[r.lane()]
	if len(waiting) == 0 {
		delete(l, r.lane())
		return nil
	}
	next := waiting[0]
	next.laned = true
	l[r.lane()] = waiting[1:]
	return next
}

// clear ends the lane of r and returns those that waited, in their order.
func (l lanes) clear(r *run) []*run {
	waiting := l[r.lane()]
	delete(l, r.lane())
	return waiting
}
