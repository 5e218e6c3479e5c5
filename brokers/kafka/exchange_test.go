package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/kafka/internal/cluster"
)

// frame is the answer to request 7 of which batches are the records.
func frame(batches ...[]byte) []byte {
	body := answerWith(batches...).AppendTo(nil)
	out := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(out, 7), body...)
}

const fetchVersion = 11 // of the fetches that come

func answerWith(batches ...[]byte) *kmsg.FetchResponse {
	part := kmsg.NewFetchResponseTopicPartition()
	part.RecordBatches = bytes.Join(batches, nil)
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.Partitions = "orders", []kmsg.FetchResponseTopicPartition{part}
	res := kmsg.NewPtrFetchResponse()
	res.Version, res.Topics = fetchVersion, []kmsg.FetchResponseTopic{topic}
	return res
}

func answerOf(frame []byte) (*fetchAnswer, error) {
	req := kmsg.NewPtrFetchRequest()
	req.Version = fetchVersion
	a := &fetchAnswer{FetchResponse: req.ResponseKind().(*kmsg.FetchResponse), buffer: new(bytes.Buffer)}
	return a, cluster.ReadInto(a.buffer, bytes.NewReader(frame), a.FetchResponse, 7)
}

func TestStrangeAnswers(t *testing.T) {
	r := record{value: []byte("v")}
	good := frame(batchOf(r, compress.None, recordNow))
	changed := func(at int, b byte) []byte {
		f := bytes.Clone(good)
		f[at] = b
		return f
	}
	for name, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"as it should be":           {good, nil},
		"nothing":                   {nil, io.EOF},
		"cut in its head":           {good[:6], io.ErrUnexpectedEOF},
		"cut in its body":           {good[:len(good)-1], io.ErrUnexpectedEOF},
		"of two gigabytes, it says": {changed(0, 0x7f), io.ErrUnexpectedEOF},
		"of negative size":          {changed(0, 0xff), cluster.ErrCorrupt},
		"shorter than its head":     {[]byte{0, 0, 0, 3, 0, 0, 0, 7}, cluster.ErrCorrupt},
		"to another request":        {changed(7, 8), cluster.ErrCorrupt},
		"with an impossible array":  {changed(18, 0x7f), cluster.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := answerOf(c.frame)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if err == nil {
				a.release()
			}
		})
	}
	empty := &fetchAnswer{FetchResponse: &kmsg.FetchResponse{ErrorCode: int16(kafka.FetchSessionIDNotFound)}}
	if _, err := empty.partition(); !errors.Is(err, kafka.FetchSessionIDNotFound) {
		t.Errorf("an answer without the partition: %v", err)
	}
}
