package sqstest

import (
	"cmp"
	"container/list"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"fmt"
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

	lane     *group
	place    *list.Element // in lane, or in the queue if it is ready
	dueIndex int
	ageIndex int
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
	return fmt.Sprintf("sqstest-%d-%d-%d", h.queue, h.message, h.generation)
}

// parseHandle reports whether text is a receipt handle at all.
func parseHandle(text string) (h handle, ok bool) {
	_, err := fmt.Sscanf(text, "sqstest-%d-%d-%d", &h.queue, &h.message, &h.generation)
	return h, err == nil && h.String() == text
}

// messages is a heap of messages by a time of theirs, and then by number.
type messages struct {
	items []*message
	time  func(m *message) time.Time
	index func(m *message) *int
}

// whenDue holds what is not visible, by when it will be.
func whenDue() messages {
	return messages{time: func(m *message) time.Time { return m.due }, index: func(m *message) *int { return &m.dueIndex }}
}

// whenSent holds all messages, by when they were sent.
func whenSent() messages {
	return messages{time: func(m *message) time.Time { return m.sent }, index: func(m *message) *int { return &m.ageIndex }}
}

func (h *messages) first() *message { return h.items[0] }
func (h *messages) Len() int        { return len(h.items) }
func (h *messages) Less(i, j int) bool {
	a, b := h.items[i], h.items[j]
	return cmp.Or(h.time(a).Compare(h.time(b)), cmp.Compare(a.number, b.number)) < 0
}
func (h *messages) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.index(h.items[i]), *h.index(h.items[j]) = i, j
}
func (h *messages) Push(x any) {
	m := x.(*message)
	*h.index(m) = len(h.items)
	h.items = append(h.items, m)
}
func (h *messages) Pop() any {
	last := len(h.items) - 1
	m := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return m
}

// bySent orders messages by when they were sent.
func bySent(a, b *message) int {
	return cmp.Or(a.sent.Compare(b.sent), cmp.Compare(a.number, b.number))
}
