package sqs

import (
	"cmp"
	"crypto/fips140"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/adapter"
	"github.com/redrive-go/redrive/brokers/wire"
)

const (
	// largest is the most that SQS takes as a message, and as a batch of them:
	// body, and names, types and values of attributes.
	largest = 1 << 20

	// packedRoom is what the packed attribute may take, of which wire.Unpack reads
	// 64 KiB and 64 headers: packedHeaders, the name of the queue, the signatures and
	// what was moved there.
	// longestEscape is what JSON makes of one byte.
	packedRoom    = 60 << 10
	packedHeaders = 60
	longestEscape = 6

	idHeader    = "redrive-id"
	keyHeader   = "redrive-key"
	topicHeader = "redrive-topic"

	deadPrefix  = "redrive-dlq-"
	deadVersion = deadPrefix + "v"

	// wrapping is about what an envelope and the identity of a message take.
	wrapping = 1 << 10

	// leastShed is the least that shedding tries to win.
	leastShed = 16

	maxGroupLength = 128

	// retention is the longest that a queue keeps a message.
	retention = 14 * 24 * time.Hour
)

// The details of brokers.Meta.Origin.
const (
	originQueue   = "queue"
	originMessage = "message-id"

	// Of what SQS has moved here from another queue.
	originSource   = "source-arn"
	originReceives = "receive-count"
	originFirst    = "first-received-at" // milliseconds since 1970
)

var errChecksum = errors.New("the body does not match its checksum")

// queueName is the name of the queue that a topic or URL stands for.
func queueName(topic string) string { return topic[strings.LastIndexByte(topic, '/')+1:] }

// parse reads what a poll brought. How far the message has come is read where a
// worker noted it for this very queue, and signed it if there is a secret; without
// one, anybody who may send to the queue could forge it. On a FIFO queue, where no
// retry is a copy, it has come back by SendBack, and starts over.
func parse(m types.Message, q *queue, limits wire.Limits) record {
	r := record{handle: aws.ToString(m.ReceiptHandle), id: aws.ToString(m.MessageId), receives: 1}
	r.group = m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	if n, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]); err == nil {
		r.receives = max(n, 1)
	}
	if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil && ms > 0 {
		r.sent = time.UnixMilli(ms).UTC()
	}
	body := []byte(aws.ToString(m.Body))
	if want := aws.ToString(m.MD5OfBody); want != "" && !matches(body, want) {
		r.err = fmt.Errorf("message %s of the queue %q: %w: it got damaged on its way here, and is given back", r.id, q.topic, errChecksum)
		return r
	}
	packed := aws.ToString(m.MessageAttributes[wire.Packed].StringValue)
	var notes brokers.Headers
	if packed != "" {
		notes, _ = wire.Unpack(packed) // what is before a fault counts
	}
	flags, moved := unpack(packed)
	ours := slices.ContainsFunc(notes, func(h brokers.Header) bool {
		return h.Name == topicHeader && h.Value == queueName(q.topic)
	})
	h := headersOf(&m, moved)
	var key *string
	if slices.Contains(flags, flagEnvelope) {
		switch e, err := open(body); {
		case err == nil:
			body, key, h = e.body, e.key, slices.Concat(h, e.headers)
		case ours:
			r.unreadable = fmt.Errorf("message %s of the queue %q: %w", r.id, q.topic, err)
		}
	}
	h = slices.Concat(h, notes)
	limits.Trusted = ours && r.unreadable == nil && q.seal.Believes(h, queueName(q.topic), "", body)
	r.message, r.meta = wire.Decode(h, limits)
	r.message.Topic = q.topic
	r.message.ID = cmp.Or(r.message.ID, r.id)
	if r.message.PublishedAt.IsZero() {
		r.message.PublishedAt = earlier(r.sent, limits.Now)
	}
	if q.fifo {
		r.meta = r.meta.Restart()
		r.meta.RedriveCount--
	}
	r.stored = limits.Trusted && !q.fifo
	if r.meta.Origin == nil {
		r.meta.Origin = r.origin(q, m.Attributes)
	}
	r.message.Body = body
	if key != nil {
		r.message.Key = *key
	} else if r.message.Key == "" && !slices.Contains(flags, flagKeyless) {
		r.message.Key = r.group
	}
	return r
}

// origin says where the message is, and what SQS notes of one that it
// dead-lettered by itself: all that anybody knows of its end.
func (r *record) origin(q *queue, system map[string]string) brokers.Headers {
	o := brokers.Headers{{Name: originQueue, Value: queueName(q.topic)}, {Name: originMessage, Value: r.id}}
	source := system[string(types.MessageSystemAttributeNameDeadLetterQueueSourceArn)]
	if source == "" {
		return o
	}
	return append(o,
		brokers.Header{Name: originSource, Value: source},
		brokers.Header{Name: originReceives, Value: strconv.Itoa(r.receives)},
		brokers.Header{Name: originFirst, Value: system[string(types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp)]})
}

// letter is a message on its way to SQS.
type letter struct {
	user  brokers.Headers
	notes brokers.Headers // of the framework
	flags []string
	group string
	fifo  bool
	delay time.Duration
	dead  bool // it is a dead letter

	body       string // as it is sent
	sealed     *envelope
	attributes map[string]types.MessageAttributeValue // those of the user
	moved      brokers.Headers                        // those of them that have no room there
	trace      string

	sign func(notes brokers.Headers) brokers.Headers // nil where nothing is signed
}

// compose maps m to SQS. meta is nil for Publish, which carries the identity
// of m alone. A delay goes up to 900 s, rounded up, and is left out on FIFO
// queues. What SQS would never take is brokers.ErrRefused.
//
// What is too large goes down a ladder. Of any message notes are left out, as
// wire.Fit does. A dead letter keeps a few of them then, then none, and then none of
// the user's headers: as body and attributes came they fit the queue that they came
// from, but not all can be sent again as they were, and another queue may be smaller.
func (q *queue) compose(m brokers.Message, meta *brokers.Meta, delay time.Duration) (outgoing, error) {
	l := letter{fifo: q.fifo, delay: delay}
	l.write(m, meta)
	if meta != nil && q.seal.Signs() {
		l.sign = func(notes brokers.Headers) brokers.Headers {
			return q.seal.Sign(notes, queueName(m.Topic), "", m.Body)
		}
	}
	if err := l.enclose(m.Body, q.topic); err != nil {
		return outgoing{}, err
	}
	limit := q.size()
	out := l.outgoing(l.shed(limit))
	if l.dead {
		if out.size > limit {
			out = l.outgoing(pack(spare(l.notes), l.moved, l.flags...))
		}
		bare := l.outgoing(l.bare())
		if bare.size > limit && len(l.user) > 0 {
			m.Headers = slices.DeleteFunc(slices.Clone(l.user), func(h brokers.Header) bool { return !isTrace(h) })
			l = letter{fifo: q.fifo}
			l.write(m, nil)
			_ = l.enclose(m.Body, q.topic) // has no headers
			bare = l.outgoing(l.bare())
		}
		if out.size > limit {
			out = bare
		}
		out.bare = &bare.entry
	}
	if out.size > limit {
		return outgoing{}, fmt.Errorf("%d bytes with attributes, the limit of the queue is %d: %w", out.size, limit, brokers.ErrRefused)
	}
	return out, nil
}

// enclose sets the body to send, in an envelope if need be. Its flag comes with
// the name of the queue, as a reader of an earlier version wants to know whose it
// is.
func (l *letter) enclose(plain []byte, topic string) error {
	l.body = string(plain)
	l.fit(l.body)
	if l.sealed == nil {
		return nil
	}
	if len(l.sealed.headers) > envelopeHeaders {
		return fmt.Errorf("%d headers, at most %d can be sent: %w", len(l.sealed.headers), envelopeHeaders, brokers.ErrRefused)
	}
	l.flags = append(l.flags, flagEnvelope)
	if _, ok := l.notes.Lookup(topicHeader); !ok {
		l.notes = append(slices.Clip(l.notes), brokers.Header{Name: topicHeader, Value: queueName(topic)})
	}
	l.sealed.body = plain
	l.body = l.sealed.seal()
	return nil
}

// outgoing is the letter with a packed attribute, unless that is empty.
func (l *letter) outgoing(packed string) outgoing {
	body := aws.String(l.body)
	attributes := make(map[string]types.MessageAttributeValue, len(l.attributes)+1)
	maps.Copy(attributes, l.attributes)
	if packed != "" {
		attributes[wire.Packed] = types.MessageAttributeValue{DataType: aws.String(typeString), StringValue: &packed}
	}
	entry := types.SendMessageBatchRequestEntry{MessageBody: body, MessageAttributes: attributes}
	if l.group != "" {
		entry.MessageGroupId = &l.group
	}
	if l.trace != "" {
		entry.MessageSystemAttributes = map[string]types.MessageSystemAttributeValue{
			traceHeader: {DataType: aws.String(typeString), StringValue: &l.trace},
		}
	}
	if l.fifo {
		// Never the ID of the message: within five minutes, SQS would confirm a
		// second copy and drop it.
		entry.MessageDeduplicationId = aws.String(rand.Text())
	} else {
		entry.DelaySeconds = seconds(min(l.delay, longestDelay))
	}
	return outgoing{entry: entry, size: len(l.body) + sizeOf(attributes)}
}

// messageLimit is the largest message, headers included, that compose takes
// whatever bytes it has: in an envelope, four stand for three. Text may be larger.
func (q *queue) messageLimit() int { return max(1, (q.size()-wrapping)/4*3) }

// size is the largest message of the queue, attributes included.
func (q *queue) size() int {
	if q.limit <= 0 || q.limit > largest {
		return largest
	}
	return q.limit
}

// write sets the headers and the group of m.
func (l *letter) write(m brokers.Message, meta *brokers.Meta) {
	plain := m
	plain.Topic = queueName(m.Topic)
	if l.group = m.Key; takesGroup(m.Key) {
		plain.Key = ""
	} else if m.Key != "" {
		l.group = hashed(m.Key)
	} else if l.fifo {
		l.flags = append(l.flags, flagKeyless)
		if l.group = cmp.Or(m.ID, rand.Text()); !takesGroup(l.group) {
			l.group = hashed(l.group)
		}
	}
	var h brokers.Headers
	if meta == nil {
		h = wire.EncodeIdentity(plain)
		l.dead = h.Get(deadVersion) != ""
	} else {
		h = wire.Encode(plain, *meta)
	}
	l.split(h)
	noted := func(h brokers.Header) bool { return h.Name == keyHeader }
	if plain.Key != "" && !slices.ContainsFunc(l.notes, noted) {
		l.sealed = &envelope{key: &plain.Key}
	}
}

// split tells what goes into the packed attribute from what does not: headers of
// the user, and those of a dead letter for which wire.Unpack has no room, or
// which JSON cannot spell.
func (l *letter) split(h brokers.Headers) {
	user, notes := wire.Partition(h)
	l.user = user
	if len(notes) < packedHeaders && adapter.Size(notes) < packedRoom/longestEscape && !slices.ContainsFunc(notes, unspeakable) {
		l.notes = notes
		return
	}
	// What the adapter carries comes last, and is little.
	room := packedRoom
	for _, note := range slices.Backward(notes) {
		size := len(pack(brokers.Headers{note}, nil))
		if unspeakable(note) || room < size || len(l.notes) >= packedHeaders-1 {
			l.user = append(l.user, note)
			continue
		}
		room -= size
		l.notes = append(l.notes, note)
	}
	slices.Reverse(l.notes)
	slices.Reverse(l.user[len(user):])
}

func unspeakable(h brokers.Header) bool {
	return !utf8.ValidString(h.Value) || !utf8.ValidString(h.Name) || !utf8.ValidString(h.Type)
}

// fit makes the user's headers attributes, or none of them, and decides whether an
// envelope is needed.
func (l *letter) fit(body string) {
	user := l.user
	if i := slices.IndexFunc(user, isTrace); i >= 0 {
		l.trace = user[i].Value
		user = slices.Delete(slices.Clone(user), i, i+1)
	}
	attributes, moved, ok := attributesOf(user)
	if ok {
		l.attributes, l.moved = attributes, moved
	}
	if !ok || !takes(body) {
		l.sealed = cmp.Or(l.sealed, &envelope{})
	}
	if !ok {
		l.sealed.headers = user
	}
}

// shed returns the packed attribute, without some notes if there is no room for all
// of them within the limit.
func (l *letter) shed(limit int) (packed string) {
	all := l.notes
	room := limit - len(l.body) - sizeOf(l.attributes) - len(wire.Packed) - len(typeString)
	if l.sign != nil {
		room -= adapter.SignatureSize(all)
	}
	packed = pack(all, l.moved, l.flags...)
	// JSON makes notes longer, by how much depends on which of them stay.
	for fit := room; len(packed) > room; fit -= max(len(packed)-room, leastShed) {
		l.notes = wire.Fit(all, max(fit, 0))
		packed = pack(l.notes, l.moved, l.flags...)
		if fit <= 0 {
			break
		}
	}
	if l.sign != nil {
		l.notes = l.sign(l.notes)
		packed = pack(l.notes, l.moved, l.flags...)
	}
	return packed
}

// spare are the notes of a dead letter that has room for hardly any: that it is
// one, why, and what a redrive needs.
func spare(notes brokers.Headers) brokers.Headers {
	names := []string{deadVersion, deadPrefix + "reason", deadPrefix + "topic", deadPrefix + "idempotency-key", deadPrefix + "count", deadPrefix + "send", idHeader, keyHeader, topicHeader}
	notes = slices.DeleteFunc(slices.Clone(notes), func(h brokers.Header) bool { return !slices.Contains(names, h.Name) })
	return append(notes, brokers.Header{Name: deadPrefix + "truncated", Value: "record"})
}

// bare is the packed attribute without notes, "" if that says nothing: an attribute
// that was moved there for its sake is back where it was.
func (l *letter) bare() string {
	if len(l.flags) == 0 && len(l.moved) == 1 {
		l.attributes[l.moved[0].Name], _ = attributeOf(l.moved[0])
		l.moved = nil
	}
	if len(l.flags) == 0 && len(l.moved) == 0 {
		return ""
	}
	return pack(nil, l.moved, l.flags...)
}

// takesGroup reports whether SQS takes key as a message group: letters, digits
// and punctuation of ASCII.
func takesGroup(key string) bool {
	return key != "" && len(key) <= maxGroupLength && !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// hashed is the group of a key that SQS does not take.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "redrive-" + hex.EncodeToString(sum[:])
}

// matches reports whether body has the MD5 checksum that SQS states. It guards
// against accidents, which FIPS mode does not forbid.
func matches(body []byte, want string) bool {
	var sum [md5.Size]byte
	fips140.WithoutEnforcement(func() { sum = md5.Sum(body) })
	var text [2 * md5.Size]byte
	return string(hex.AppendEncode(text[:0], sum[:])) == want
}
