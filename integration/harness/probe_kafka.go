package harness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const maxAnswer = 64 << 10 // Kafka's list of requests takes about 700 bytes

// correlation is the number by which an answer names its request.
const correlation = 7

// The requests are complete but for their length. Each begins with the number
// of the request, its version, and the correlation.
const (
	// ApiVersions 3: no client id, and the names of two that are not there.
	askVersions = "\x00\x12\x00\x03\x00\x00\x00\x07\xff\xff\x00" + "\x06probe\x021\x00"
	// Metadata 1: no client id, no topics.
	askMetadata = "\x00\x03\x00\x01\x00\x00\x00\x07\xff\xff" + "\x00\x00\x00\x00"
)

// errNotListed is what a Kafka answers that takes requests, but not yet part.
var errNotListed = errors.New("it lists no broker yet, not even itself")

// greetKafka asks what the broker is, and whether it takes part in its cluster.
func greetKafka(conn io.ReadWriter) (Greeting, error) {
	versions, err := ask(conn, askVersions)
	if err != nil {
		return Greeting{}, err
	}
	level, err := metadataLevel(versions)
	if err != nil {
		return Greeting{}, err
	}
	metadata, err := ask(conn, askMetadata)
	if err != nil {
		return Greeting{}, err
	}
	if len(metadata) < 4 {
		return Greeting{}, errMalformed
	}
	if binary.BigEndian.Uint32(metadata) == 0 {
		return Greeting{}, errNotListed
	}
	return Greeting{Product: "Kafka", Version: release(level)}, nil
}

// release names the release by the newest format of the metadata that it knows:
// a Kafka does not tell its version. The ones of the harness are enough here.
func release(level uint16) string {
	switch level {
	case 21:
		return "3.9"
	case 30:
		return "4.3"
	}
	return fmt.Sprintf("with metadata.version %d", level)
}

// ask sends a request and returns the answer behind its correlation.
func ask(conn io.ReadWriter, request string) ([]byte, error) {
	message := binary.BigEndian.AppendUint32(nil, uint32(len(request)))
	if _, err := conn.Write(append(message, request...)); err != nil {
		return nil, err
	}
	var head [8]byte // length of the rest, correlation
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxAnswer || binary.BigEndian.Uint32(head[4:]) != correlation {
		return nil, errMalformed
	}
	answer := make([]byte, size-4)
	_, err := io.ReadFull(conn, answer)
	return answer, err
}

// metadataLevel reads the highest metadata.version that the broker supports
// from its answer to ApiVersions.
func metadataLevel(answer []byte) (uint16, error) {
	r := reader{rest: answer}
	if code := r.uint16(); code != 0 {
		return 0, fmt.Errorf("%w: error code %d", errMalformed, code)
	}
	for range r.count() {
		r.skip(6) // a request and its versions
		r.skipTags()
	}
	r.skip(4) // throttle time
	for range r.varint() {
		tag, value := r.varint(), reader{rest: r.bytes(r.varint())}
		if tag != 0 || r.failed {
			continue
		}
		for range value.count() {
			name := value.bytes(value.count())
			value.skip(2) // lowest
			highest := value.uint16()
			value.skipTags()
			if string(name) == "metadata.version" && !value.failed {
				return highest, nil
			}
		}
	}
	return 0, fmt.Errorf("%w: no metadata.version", errMalformed)
}

// reader walks a message. Once it has failed it returns zeros.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) bytes(n uint64) []byte {
	if r.failed || n > uint64(len(r.rest)) {
		r.failed = true
		return nil
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) skip(n uint64) { r.bytes(n) }

func (r *reader) uint16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// varint reads a number. None that counts something exceeds what is left.
func (r *reader) varint() uint64 {
	value, n := binary.Uvarint(r.rest)
	if n <= 0 || value > uint64(len(r.rest)) {
		r.failed = true
		return 0
	}
	r.skip(uint64(n))
	return value
}

// count reads the length of a list or text, which is written plus one.
func (r *reader) count() uint64 { return max(r.varint(), 1) - 1 }

func (r *reader) skipTags() {
	for range r.varint() {
		r.varint()
		r.skip(r.varint())
	}
}
