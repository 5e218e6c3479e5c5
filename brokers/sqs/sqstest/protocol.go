package sqstest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// maxRequest bounds what is read of one request: 1 MiB of messages, each byte
// of which may be escaped.
const maxRequest = 16 << 20

// errCut ends a call without an answer.
var errCut = errors.New("connection cut")

// A call is one request on its way through the server.
type call struct {
	ctx       context.Context
	operation string
	fault     *Fault
	record    *Call
}

// An answer is an HTTP response.
type answer struct {
	status int
	query  string
	body   []byte
}

// Transport returns a RoundTripper that calls the server within the process.
// It ignores the host of the request, starts no goroutine, and returns when
// the context of the request ends, like a connection.
func (s *Server) Transport() http.RoundTripper { return transport{s} }

type transport struct{ server *Server }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if !t.server.begin() {
		return nil, &net.OpError{Op: "dial", Net: "sqstest", Err: syscall.ECONNREFUSED}
	}
	defer t.server.running.Done()
	out, err := t.server.handle(r.Context(), r.Header, body)
	if cause := r.Context().Err(); cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, &net.OpError{Op: "read", Net: "sqstest", Err: syscall.ECONNRESET}
	}
	header := make(http.Header, 4)
	out.writeHeader(header)
	return &http.Response{
		Status:     strconv.Itoa(out.status) + " " + http.StatusText(out.status),
		StatusCode: out.status,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        header,
		Body:          io.NopCloser(bytes.NewReader(out.body)),
		ContentLength: int64(len(out.body)),
		Request:       r,
	}, nil
}

// wholeBodies sends requests with bodies that cannot be closed too early.
type wholeBodies struct{ *http.Transport }

func (t wholeBodies) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return t.Transport.RoundTrip(r)
}

func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	defer r.Body.Close()
	return io.ReadAll(io.LimitReader(r.Body, maxRequest))
}

// serveHTTP is the socket's way in.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r)
	if err != nil || !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.running.Done()
	out, err := s.handle(r.Context(), r.Header, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.writeHeader(w.Header())
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body)
}

func (a *answer) writeHeader(h http.Header) {
	h.Set("Content-Type", "application/x-amz-json-1.0")
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	h.Set("X-Amzn-Requestid", newID())
	if a.query != "" {
		h.Set("X-Amzn-Query-Error", a.query)
	}
}

// handle runs one request: decoding, faults, operation, answer. An error means
// that there is no answer.
func (s *Server) handle(ctx context.Context, header http.Header, body []byte) (*answer, error) {
	name, found := strings.CutPrefix(header.Get("X-Amz-Target"), "AmazonSQS.")
	op, known := s.operations[name]
	if !found || !known {
		return reply(header, nil, fail("InvalidAction", "The action %q is not one of this server.", name)), nil
	}
	in, run, err := op(body)
	c := &call{ctx: ctx, operation: name}
	s.begun(c, in, body)
	var out any
	if err == nil {
		out, err = s.execute(c, run)
	}
	var a *answer
	if err == nil || !errors.Is(err, errCut) {
		a = reply(header, out, err)
	}
	s.ended(c, a, out, err)
	if a == nil {
		return nil, errCut
	}
	return a, nil
}

// execute runs the operation between what the call's fault does before and
// after its effect.
func (s *Server) execute(c *call, run func(*Server, *call) (any, error)) (any, error) {
	if c.fault == nil {
		return run(s, c)
	}
	if c.fault.AfterEffect {
		out, err := run(s, c)
		if err != nil {
			return nil, err
		}
		return out, s.suffer(c)
	}
	if err := s.suffer(c); err != nil {
		return nil, err
	}
	return run(s, c)
}

// reply encodes the outcome of an operation.
func reply(header http.Header, out any, err error) *answer {
	if err == nil {
		body, err := encode(out)
		if err == nil {
			return &answer{status: http.StatusOK, body: body}
		}
		return reply(header, nil, fail("InternalFailure", "The answer cannot be encoded: %v", err))
	}
	e := asError(err)
	a := &answer{status: e.kind.status}
	if e.kind.shape == "" {
		return a
	}
	a.body, _ = encode(map[string]string{"__type": e.kind.shape, "message": e.message})
	if strings.EqualFold(header.Get("X-Amzn-Query-Mode"), "true") {
		a.query = e.kind.query + ";" + e.kind.fault()
	}
	return a
}

// encode writes JSON as AWS does, without HTML escapes.
func encode(v any) ([]byte, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}

// A request names the queue that it is about, for faults and the journal.
type request interface{ queueName() string }

// An operation decodes a request and returns it with what to run.
type operation func(body []byte) (request, func(*Server, *call) (any, error), error)

// bind makes an operation of a method.
func bind[T any, P interface {
	*T
	request
}](method func(*Server, *call, P) (any, error)) operation {
	return func(body []byte) (request, func(*Server, *call) (any, error), error) {
		in := P(new(T))
		if !utf8.Valid(body) {
			return in, nil, fail("SerializationException", "The request is not valid UTF-8.")
		}
		if err := json.Unmarshal(body, in); err != nil {
			return in, nil, fail("SerializationException", "The request is not the JSON of this operation: %v", err)
		}
		return in, func(s *Server, c *call) (any, error) { return method(s, c, in) }, nil
	}
}

// operations are what the server does, by name.
func operations() map[string]operation {
	return map[string]operation{
		"CreateQueue":                  bind((*Server).createQueue),
		"GetQueueUrl":                  bind((*Server).getQueueURL),
		"GetQueueAttributes":           bind((*Server).getQueueAttributes),
		"SetQueueAttributes":           bind((*Server).setQueueAttributes),
		"ListQueues":                   bind((*Server).listQueues),
		"DeleteQueue":                  bind((*Server).deleteQueue),
		"PurgeQueue":                   bind((*Server).purgeQueue),
		"SendMessage":                  bind((*Server).sendMessage),
		"SendMessageBatch":             bind((*Server).sendMessageBatch),
		"ReceiveMessage":               bind((*Server).receiveMessage),
		"DeleteMessage":                bind((*Server).deleteMessage),
		"DeleteMessageBatch":           bind((*Server).deleteMessageBatch),
		"ChangeMessageVisibility":      bind((*Server).changeMessageVisibility),
		"ChangeMessageVisibilityBatch": bind((*Server).changeMessageVisibilityBatch),
	}
}

// newID returns a random identifier in the form of a UUID.
func newID() string {
	a, b := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x",
		uint32(a>>32), uint16(a>>16), a&0xfff, 0x8000|b>>48&0x3fff, b&0xffffffffffff)
}
