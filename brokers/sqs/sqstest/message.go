package sqstest

import (
	"cmp"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is where a message of a queue is.
type State int

const (
	Visible  State = iota // can be received, unless its FIFO group is locked
	InFlight              // received, and its visibility timeout runs
	Delayed               // sent with a delay that runs
)

// String names the state.
func (s State) String() string {
	switch s {
	case Visible:
		return "visible"
	case InFlight:
		return "in flight"
	case Delayed:
		return "delayed"
	}
	return "unknown"
}

// A message is in one queue, and there in the heap of its age, in the heap of
// what comes due unless it is visible, and in one list: that of its FIFO group,
// or that of the visible messages of a standard queue.
type message struct {
	number        uint64
	id            string
	body, bodySum string
	attributes    map[string]attribute
	attributesSum string
	trace         string
	group, dedup  string
	sequence      uint64
	source        string // the queue that it was moved here from, an ARN

	sent, first time.Time
	received    time.Time // its last receive
	due         time.Time // when it becomes visible
	state       State
	receives    int    // in all queues, as reported
	here        int    // in this queue, for its redrive policy
	generation  uint32 // of its receipt handle: counts receives and moves
	changed     bool   // its visibility, since its last receive

	lane       *group
	prev, next *message
	dueIndex   int
	ageIndex   int
}

// attribute is a message attribute as on the wire.
type attribute struct {
	DataType         string
	StringValue      *string  `json:",omitempty"`
	BinaryValue      []byte   `json:",omitempty"`
	StringListValues []string `json:",omitempty"`
	BinaryListValues [][]byte `json:",omitempty"`
}

func (a attribute) binary() bool {
	return a.DataType == "Binary" || strings.HasPrefix(a.DataType, "Binary.")
}

// value returns the bytes of the value.
func (a attribute) value() []byte {
	if a.StringValue != nil {
		return []byte(*a.StringValue)
	}
	return a.BinaryValue
}

// sum is the MD5 of a string, as SQS reports it.
func sum(text string) string {
	digest := md5.Sum([]byte(text))
	return hex.EncodeToString(digest[:])
}

// sumAttributes is the MD5 of message attributes: of each, in the order of the
// names, name, type and value with their lengths, and a byte for the kind of
// value. Without attributes it is empty.
func sumAttributes(attributes map[string]attribute) string {
	if len(attributes) == 0 {
		return ""
	}
	var data []byte
	put := func(part []byte) {
		data = binary.BigEndian.AppendUint32(data, uint32(len(part)))
		data = append(data, part...)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		a := attributes[name]
		put([]byte(name))
		put([]byte(a.DataType))
		if a.binary() {
			data = append(data, 2)
		} else {
			data = append(data, 1)
		}
		put(a.value())
	}
	digest := md5.Sum(data)
	return hex.EncodeToString(digest[:])
}

// A handle is what a receipt handle says: queue, message, and which receive.
type handle struct {
	queue, message uint64
	generation     uint32
}

func (h handle) String() string {
	data := binary.BigEndian.AppendUint64(nil, h.queue)
	data = binary.BigEndian.AppendUint64(data, h.message)
	data = binary.BigEndian.AppendUint32(data, h.generation)
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(data, checksum(data)))
}

// parseHandle reports whether text is a receipt handle at all.
func parseHandle(text string) (handle, bool) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) != 24 || binary.BigEndian.Uint32(data[20:]) != checksum(data[:20]) {
		return handle{}, false
	}
	return handle{
		queue:      binary.BigEndian.Uint64(data),
		message:    binary.BigEndian.Uint64(data[8:]),
		generation: binary.BigEndian.Uint32(data[16:]),
	}, true
}

func checksum(data []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(data)
	return h.Sum32()
}

// A sequence holds messages in order.
type sequence struct{ head, tail *message }

func (l *sequence) append(m *message) {
	m.prev, m.next = l.tail, nil
	if l.tail == nil {
		l.head = m
	} else {
		l.tail.next = m
	}
	l.tail = m
}

func (l *sequence) remove(m *message) {
	if m.prev == nil {
		l.head = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		l.tail = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.prev, m.next = nil, nil
}

// dueHeap holds what is not visible, by when it will be.
type dueHeap []*message

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return earlier(h[i], h[j], h[i].due, h[j].due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dueIndex, h[j].dueIndex = i, j
}
func (h *dueHeap) Push(x any) {
	m := x.(*message)
	m.dueIndex = len(*h)
	*h = append(*h, m)
}
func (h *dueHeap) Pop() any { return pop((*[]*message)(h)) }

// ageHeap holds all messages, by when they were sent.
type ageHeap []*message

func (h ageHeap) Len() int           { return len(h) }
func (h ageHeap) Less(i, j int) bool { return earlier(h[i], h[j], h[i].sent, h[j].sent) }
func (h ageHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].ageIndex, h[j].ageIndex = i, j
}
func (h *ageHeap) Push(x any) {
	m := x.(*message)
	m.ageIndex = len(*h)
	*h = append(*h, m)
}
func (h *ageHeap) Pop() any { return pop((*[]*message)(h)) }

// bySent orders messages by when they were sent.
func bySent(a, b *message) int {
	return cmp.Or(a.sent.Compare(b.sent), cmp.Compare(a.number, b.number))
}

// earlier orders by time, and what has the same time by number.
func earlier(a, b *message, at, bt time.Time) bool {
	if c := at.Compare(bt); c != 0 {
		return c < 0
	}
	return a.number < b.number
}

func pop(items *[]*message) *message {
	old := *items
	last := len(old) - 1
	m := old[last]
	old[last] = nil
	*items = old[:last]
	return m
}
