package kafka

const (
	bufferBytes = 2 << 20 // that a fetch asks for, and from which on in a buffer nothing more is fetched
	leastBuffer = 64 << 10
	firstAsk    = 512 << 10 // that the first fetch asks for; the next ones ask for more

	// mostWaiting is how many records of a delay partition are kept in mind;
	// then reading stops until some of them were due. Those of paused topics
	// leave a fourth as many for others.
	mostWaiting = 2 << 20

	// bodyBytes is how much of the records of a delay partition is kept until
	// they are due. Others are fetched again when they are due within ahead:
	// many at a time, because they come in batches with others that are not.
	bodyBytes = 4 << 20

	// soonBytes is how much of a delay partition is here because it is due
	// within ahead. Paused topics may keep half as much besides.
	soonBytes = 16 << 20

	// A source that has more partitions, or partitions of delay topics, divides
	// among them what so many may have.
	fullBuffers = 32
	fullDelays  = 8
)

// memory bounds what a partition takes.
type memory struct {
	buffer  int // bytes that are fetched ahead, and on their way
	waiting int // records in the index of a delay partition
	bodies  int // bytes of those that wait
	soon    int // bytes of those that are due soon
}

// share is what each of the partitions of a source may take, delays of which
// are of delay topics.
func (m memory) share(partitions, delays int) memory {
	if partitions > fullBuffers {
		m.buffer = max(m.buffer*fullBuffers/partitions, leastBuffer)
	}
	if delays > fullDelays {
		m.waiting = m.waiting * fullDelays / delays
		m.bodies = m.bodies * fullDelays / delays
		m.soon = m.soon * fullDelays / delays
	}
	return m
}
