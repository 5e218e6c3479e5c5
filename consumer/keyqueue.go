package consumer

import "slices"

// keyQueues keep the messages of one key in order: it is the turn of one, and
// the others wait. A key without any has no entry.
type keyQueues map[topicKey][]*delivery

type topicKey struct{ topic, key string }

func (d *delivery) topicKey() topicKey { return topicKey{d.Message.Topic, d.Message.Key} }

// enter reports whether d may go on. If not, next or clear returns it later.
func (q keyQueues) enter(d *delivery) bool {
	if d.Message.Key == "" {
		return true
	}
	behind, busy := q[d.topicKey()]
	if busy {
		q[d.topicKey()] = append(behind, d)
		return false
	}
	d.turn = true
	q[d.topicKey()] = nil
	return true
}

// next gives the turn of d to the delivery that has waited longest, nil if none
// has.
func (q keyQueues) next(d *delivery) *delivery {
	behind := q[d.topicKey()]
	for i, next := range behind {
		if state(next.state.Load()) != gone {
			next.turn = true
			q[d.topicKey()] = behind[i+1:]
			return next
		}
	}
	delete(q, d.topicKey())
	return nil
}

// leave takes d out of the queue behind its key, and reports whether it was there.
func (q keyQueues) leave(d *delivery) bool {
	behind := q[d.topicKey()]
	i := slices.Index(behind, d)
	if i >= 0 {
		q[d.topicKey()] = slices.Delete(behind, i, i+1)
	}
	return i >= 0
}

// clear ends the queue behind d and returns it.
func (q keyQueues) clear(d *delivery) []*delivery {
	behind := q[d.topicKey()]
	delete(q, d.topicKey())
	return behind
}
