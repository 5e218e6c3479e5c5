package kafka

// queue has the records of several fetches, which it does not copy.
type queue struct {
	parts [][]*record
	size  int
}

func (q *queue) len() int { return q.size }

func (q *queue) add(records []*record) {
	if len(records) > 0 {
		q.parts = append(q.parts, records)
		q.size += len(records)
	}
}

// take removes and returns the first record and at most n-1 after it, of one
// fetch.
func (q *queue) take(n int) []*record {
	first := q.parts[0]
	n = min(n, len(first))
	q.size -= n
	if n == len(first) {
		q.parts[0] = nil
		q.parts = q.parts[1:]
	} else {
		q.parts[0] = first[n:]
	}
	return first[:n:n]
}

// cut removes and returns the records of the last fetch.
func (q *queue) cut() []*record {
	last := len(q.parts) - 1
	part := q.parts[last]
	q.parts[last] = nil
	q.parts = q.parts[:last]
	q.size -= len(part)
	return part
}
