package rabbitmq

import (
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
	Policy    *object        `json:"effective_policy_definition"` // nil without statistics
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

// ask gets what is at a path of the management API.
func (b *Broker) ask(ctx context.Context, into any, path ...string) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.options.CallTimeout)
	defer cancel()
	for i, part := range path {
		path[i] = url.PathEscape(part)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(b.options.ManagementURL, "/")+"/api/"+strings.Join(path, "/"), nil)
	if err != nil {
		return false, err
	}
	if request.URL.User == nil {
		account := b.endpoints[0].PlainAuth()
		if b.options.Credentials != nil {
			account.Username, account.Password = b.options.Credentials()
		}
		request.SetBasicAuth(account.Username, account.Password)
	}
	answer, err := b.manager.Do(request)
	if err != nil {
		return false, fmt.Errorf("ask the management API: %w", redacted(err))
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return false, nil
	case answer.StatusCode != http.StatusOK:
		return false, fmt.Errorf("the management API at %s answers %s: check Options.ManagementURL, and that the user has the tag management or monitoring",
			request.URL.Redacted(), answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, mostAnswer)).Decode(into); err != nil {
		return false, fmt.Errorf("read the answer of the management API at %s: %w", request.URL.Redacted(), err)
	}
	return true, nil
}

// redacted is an error of a request without the address, which may hold a
// password.
func redacted(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// readPolicies adds to what is known of a queue what its policies set, and its
// arguments where AMQP did not show them.
func (b *Broker) readPolicies(ctx context.Context, q *quality) error {
	var m managed
	found, err := b.ask(ctx, &m, "queues", q.vhost, q.name)
	if err != nil || !found {
		return err
	}
	if q.unknown {
		q.declared = amqp.Table{}
		for name, value := range m.Arguments {
			q.declared[name] = whole(value)
		}
		q.kind, q.unknown = textOf(q.declared[argType]), false
		if q.kind == "" {
			q.kind = typeClassic
		}
	}
	q.args = maps.Clone(q.declared)
	if m.Policy == nil {
		return nil
	}
	q.read = true
	for name, value := range *m.Policy {
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
