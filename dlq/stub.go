package dlq

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/text"
)

// Original is what a stub says of the message that it stands for.
type Original struct {
	// BodyBytes is the size of the body, HeaderBytes that of the names and
	// values of the producer's headers.
	BodyBytes, HeaderBytes int

	// BodySHA256 is the SHA-256 of the body, in hex.
	BodySHA256 string
}

// whereabouts is the value of the header that says that a dead letter is a stub.
const whereabouts = "The original is where the broker keeps what it dead-letters itself of redrive-dlq-topic, or, if that refuses it, still there."

// put writes what a stub says. A dead letter that is none says nothing.
func (o *Original) put(put func(name, value string)) {
	if o == nil {
		return
	}
	put(headerStub, whereabouts)
	put(headerBodyBytes, strconv.Itoa(max(o.BodyBytes, 0)))
	put(headerHeaderBytes, strconv.Itoa(max(o.HeaderBytes, 0)))
	if isHash(o.BodySHA256) {
		put(headerBodyHash, o.BodySHA256)
	}
}

// originalOf is what a record says of the original, nil if it is of no stub.
func originalOf(record brokers.Headers) *Original {
	if record.Get(headerStub) == "" {
		return nil
	}
	body, _ := text.Number(record.Get(headerBodyBytes))
	headers, _ := text.Number(record.Get(headerHeaderBytes))
	o := &Original{BodyBytes: int(body), HeaderBytes: int(headers)}
	if sum := record.Get(headerBodyHash); isHash(sum) {
		o.BodySHA256 = sum
	}
	return o
}

func isHash(s string) bool {
	sum, err := hex.DecodeString(s)
	return err == nil && len(sum) == sha256.Size
}
