package rabbitmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// managed is a queue as the management API shows it.
type managed struct {
	Arguments map[string]any `json:"arguments"`
	Effective *object        `json:"effective_policy_definition"` // nil without statistics
	Policy    string         `json:"policy"`                      // empty if none is in force
	Operator  string         `json:"operator_policy"`             // empty if none is in force
	Members   []string       `json:"members"`                     // nodes, of a quorum queue
}

// object is an object of JSON, or an empty list, as Erlang may have it.
type object map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (o *object) UnmarshalJSON(text []byte) error {
	if string(text) == "[]" {
		text = []byte("{}")
	}
	return json.Unmarshal(text, (*map[string]any)(o))
}

// mostAnswer bounds an answer of the management API.
const mostAnswer = 16 << 20

// ask gets what is at a path of the management API, and decodes it into something,
// unless there is no such thing. A check that has failed is an answer, too.
func (b *Broker) ask(ctx context.Context, into any, query url.Values, path ...string) (*http.Response, error) {
	for i, part := range path {
		path[i] = url.PathEscape(part)
	}
	address := strings.TrimSuffix(b.options.ManagementURL, "/") + "/api/" + strings.Join(path, "/") + "?" + query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "?"), nil)
	if err != nil {
		return nil, redacted(err)
	}
	if request.URL.User == nil {
		account := b.account(b.endpoints[0])
		request.SetBasicAuth(account.Username, account.Password)
	}
	answer, err := b.manager.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the management API: %w", redacted(err))
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusNotFound:
		return answer, nil
	case http.StatusOK, http.StatusServiceUnavailable:
	default:
		return answer, fmt.Errorf("the management API at %s answers %s: check Options.ManagementURL, and that the user has the tag management or monitoring",
			request.URL.Redacted(), answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, mostAnswer)).Decode(into); err != nil {
		return answer, fmt.Errorf("read the answer of the management API at %s: %w", request.URL.Redacted(), err)
	}
	return answer, nil
}

// redacted is an error of a request without the address, which may hold a
// password.
func redacted(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// readManaged adds the settings of its policies to those of a queue, and its
// arguments where AMQP did not show them.
func (b *Broker) readManaged(ctx context.Context, q *quality, all policies) error {
	var m managed
	if answer, err := b.ask(ctx, &m, nil, "queues", q.vhost, q.name); err != nil || answer.StatusCode != http.StatusOK {
		return err
	}
	q.members = m.Members
	if q.unknown {
		q.declared = amqp.Table{}
		for name, value := range m.Arguments {
			q.declared[name] = whole(value)
		}
		q.kind, q.unknown = cmp.Or(textOf(q.declared[argType]), typeClassic), false
	}
	q.args = maps.Clone(q.declared)
	if m.Effective != nil {
		q.read, q.policy, q.ruling = true, *m.Effective, all.named(m.Policy, m.Operator)
	} else if q.ruling, q.read = all.of(q.name, q.kind); q.read {
		q.policy = q.ruling.definition()
	}
	for name, value := range q.policy {
		is, set := q.declared["x-"+name]
		n, counts := whole(value).(int64)
		if m, _ := is.(int64); !set || counts && n < m { // of two limits the lower one is in force
			q.args["x-"+name] = whole(value)
		}
	}
	return nil
}

// whole is a number of JSON as AMQP has it.
func whole(value any) any {
	if n, ok := value.(float64); ok {
		return int64(n)
	}
	return value
}
