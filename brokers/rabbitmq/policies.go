package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// policies are all policies of a vhost. Without statistics, the management API does
// not say which of them is in force for a queue; policies does.
type policies struct {
	users, operators []policy
	known            bool
}

type policy struct {
	Name       string  `json:"name"`
	Pattern    string  `json:"pattern"`
	Applies    string  `json:"apply-to"`
	Priority   float64 `json:"priority"`
	Definition object  `json:"definition"`
}

// readPolicies gets the policies of a vhost. If the user may not see them, they stay
// unknown.
func (b *Broker) readPolicies(ctx context.Context, vhost string) (p policies) {
	users, err := b.ask(ctx, &p.users, nil, "policies", vhost)
	operators, err2 := b.ask(ctx, &p.operators, nil, "operator-policies", vhost)
	p.known = err == nil && err2 == nil && users.StatusCode == http.StatusOK && operators.StatusCode == http.StatusOK
	return p
}

// ruling is the policies in force for a queue: at most one of users, and one of
// operators.
type ruling struct{ user, operator *policy }

// of finds the policies in force for a queue, if they are certain.
func (p policies) of(name, kind string) (r ruling, certain bool) {
	if !p.known {
		return r, false
	}
	var known [2]bool
	r.user, known[0] = inForce(p.users, name, kind)
	r.operator, known[1] = inForce(p.operators, name, kind)
	return r, known[0] && known[1]
}

// named returns the ruling of the policies with these names, which the broker
// returned.
func (p policies) named(user, operator string) ruling {
	find := func(ps []policy, name string) *policy {
		if i := slices.IndexFunc(ps, func(p policy) bool { return name != "" && p.Name == name }); i >= 0 {
			return &ps[i]
		}
		return nil
	}
	return ruling{find(p.users, user), find(p.operators, operator)}
}

// inForce is the policy with the highest priority among all that apply. If several
// have the same priority, the broker takes any of them.
func inForce(ps []policy, name, kind string) (in *policy, certain bool) {
	ps = slices.Clone(ps)
	slices.SortStableFunc(ps, func(a, b policy) int { return int(b.Priority - a.Priority) })
	for i, p := range ps {
		if in != nil && p.Priority < in.Priority {
			break
		}
		switch applies, certain := p.appliesTo(name, kind); {
		case !certain:
			return nil, false
		case !applies:
		case in == nil:
			in = &ps[i]
		case !reflect.DeepEqual(in.Definition, p.Definition):
			return nil, false
		}
	}
	return in, true
}

// appliesTo reports whether the broker applies p to a queue, if that is
// certain. If p has one key that this kind of queue does not have, the broker
// applies no part of p.
func (p policy) appliesTo(name, kind string) (applies, certain bool) {
	switch p.Applies {
	case "all", "queues", kind + "_queues":
	case "exchanges", "streams", "classic_queues", "quorum_queues":
		return false, true
	default:
		return false, false
	}
	if matches, certain := matches(p.Pattern, name); !matches || !certain {
		return matches, certain
	}
	applies, certain = true, true
	for key := range p.Definition {
		switch owner := keyOwners[key]; owner {
		case kind, "queues":
		case "":
			certain = false
		default:
			return false, true
		}
	}
	return applies, certain
}

// keyOwners are the kinds of queues that have a key of policies: one kind, or quorum
// and classic queues.
var keyOwners = map[string]string{
	"message-ttl": "queues", "expires": "queues", "max-length": "queues", "max-length-bytes": "queues",
	"overflow": "queues", "dead-letter-exchange": "queues", "dead-letter-routing-key": "queues",
	"delivery-limit": typeQuorum, "dead-letter-strategy": typeQuorum,
	"ha-mode": typeClassic, "ha-params": typeClassic, "ha-sync-mode": typeClassic, "ha-promote-on-shutdown": typeClassic,
	"ha-promote-on-failure": typeClassic, "queue-mode": typeClassic, "queue-master-locator": typeClassic,
	"max-age": typeStream, "stream-max-segment-size-bytes": typeStream, "initial-cluster-size": typeStream,
}

// excluding is a pattern that begins with a negative lookahead, as of a policy for all
// but a few queues. Go's expressions have none.
var excluding = regexp.MustCompile(`^\^\(\?!([^()]*)\)([^()|]*)$`)

// matches reports whether the broker finds the pattern of a policy in a name, if that is
// certain.
func matches(pattern, name string) (found, certain bool) {
	find := func(pattern string) bool {
		expression, err := regexp.Compile(pattern)
		certain = certain && err == nil
		return err == nil && expression.MatchString(name)
	}
	certain = true
	if parts := excluding.FindStringSubmatch(pattern); parts != nil {
		found = !find("^(?:"+parts[1]+")") && find("^"+parts[2])
	} else {
		found = find(pattern)
	}
	return found && certain, certain
}

// definition is the settings of r together. Of two limits the lower one is in force.
func (r ruling) definition() object {
	all := object{}
	if r.user != nil {
		maps.Copy(all, r.user.Definition)
	}
	if r.operator == nil {
		return all
	}
	for key, value := range r.operator.Definition {
		limit, _ := all[key].(float64)
		if n, counts := value.(float64); all[key] == nil || !counts || limit < 0 || n >= 0 && n < limit {
			all[key] = value
		}
	}
	return all
}

// without is how to take a setting out of the policies and arguments of a queue.
func (q quality) without(key string) string {
	var steps []string
	if o := q.ruling.operator; o != nil && o.Definition[key] != nil {
		rest := maps.Clone(o.Definition)
		delete(rest, key)
		command := fmt.Sprintf("rabbitmqctl clear_operator_policy -p %s %s", shell(q.vhost), shell(o.Name))
		if len(rest) > 0 {
			command = fmt.Sprintf("rabbitmqctl set_operator_policy -p %s --priority %.0f --apply-to %s %s %s %s",
				shell(q.vhost), o.Priority, o.Applies, shell(o.Name), shell(o.Pattern), shell(jsonOf(rest)))
		}
		steps = append(steps, fmt.Sprintf("take %s out of the operator policy %q, which may rule other queues too: %s", key, o.Name, command))
	}
	delete(q.wanted, key)
	if u := q.ruling.user; u != nil && u.Definition[key] != nil || len(steps) == 0 && q.policy[key] != nil {
		steps = append(steps, q.mend(nil))
	}
	if _, set := q.declared["x-"+key]; set || len(steps) == 0 {
		steps = append(steps, another)
	}
	return strings.Join(steps, "; and ")
}
