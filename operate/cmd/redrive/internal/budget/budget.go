// Package budget looks at the Redis through which workers share a retry budget, and
// says what makes the budget weaker. It changes nothing.
//
// No finding is worse than inspect.Noted: without Redis each worker has its own part of
// the budget, and a retry is told to wait, never dropped. The clock does not matter, as
// Redis alone tells the time.
package budget

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/brokers/inspect"
)

// page is about the set-up of such a Redis.
const page = "https://github.com/redrive-go/redrive/blob/main/docs/how-to/share-a-retry-budget.md#set-redis-up"

// server is what is known of a Redis.
type server struct {
	address string
	cli     string            // begins a command for it
	info    map[string]string // what INFO says
	saves   string            // when it makes snapshots, empty for never
	managed bool              // CONFIG is not allowed, and saves not known
}

// Inspect returns what is wrong with the Redis of a client. It asks with INFO, which
// managed servers allow, too, and with CONFIG GET, which they may not.
func Inspect(ctx context.Context, client *redis.Client) ([]inspect.Finding, error) {
	s := server{address: client.Options().Addr, cli: cli(client.Options())}
	text, err := client.Info(ctx).Result()
	if isDenied(err) {
		return []inspect.Finding{s.finding(inspect.Unverified, "", "", "", "it may evict the budget, or forget it: the user may not ask (INFO)", s.grant("+info"))}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask Redis at %s: %w", s.address, err)
	}
	s.info = readInfo(text)
	config, err := client.ConfigGet(ctx, "save").Result()
	if _, answered := errors.AsType[redis.Error](err); err != nil && !answered {
		return nil, fmt.Errorf("ask Redis at %s: %w", s.address, err)
	}
	s.saves, s.managed = config["save"], err != nil
	var found []inspect.Finding
	for _, rule := range []func(server) inspect.Finding{isReplica, evicts, forgets, cannotSave} {
		if f := rule(s); f.Why != "" {
			found = append(found, f)
		}
	}
	return found, nil
}

// isDenied reports whether err is about a command that the user or the server lacks.
func isDenied(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "unknown command")
}

func readInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func (s server) finding(severity inspect.Severity, setting, value, want, why, fix string) inspect.Finding {
	return inspect.Finding{Severity: severity, Topic: s.address, Setting: setting, Value: value, Want: want, Why: why, Fix: fix, See: page}
}

// set is the command for a setting, or what to do where that is not allowed.
func (s server) set(setting, value string) string {
	if s.managed {
		return fmt.Sprintf("set %s to %s where the server is configured: CONFIG is not allowed", setting, value)
	}
	return fmt.Sprintf("%s CONFIG SET %s %s", s.cli, setting, value)
}

func (s server) grant(right string) string {
	return fmt.Sprintf("%s ACL SETUSER NAME %s", s.cli, right)
}

func isReplica(s server) inspect.Finding {
	if s.info["role"] != "slave" {
		return inspect.Finding{}
	}
	return s.finding(inspect.Noted, "role", "replica", "primary", "workers cannot write there, and each has its own part of the budget alone",
		"name the primary, "+net.JoinHostPort(s.info["master_host"], s.info["master_port"]))
}

func evicts(s server) inspect.Finding {
	const setting, want = "maxmemory-policy", "noeviction"
	limit, policy := s.info["maxmemory"], s.info["maxmemory_policy"]
	switch {
	case policy == "":
		return s.finding(inspect.Unverified, setting, "", want, "the server does not say whether it evicts keys, and with them the budget", s.set(setting, want))
	case policy == want || limit == "0":
		return inspect.Finding{}
	}
	return s.finding(inspect.Noted, setting, policy, want, "the server may remove the budget to save memory, which begins anew with one token then: retries wait", s.set(setting, want))
}

func forgets(s server) inspect.Finding {
	const setting, want = "appendonly", "yes"
	switch {
	case s.info["aof_enabled"] == "1" || s.saves != "":
		return inspect.Finding{}
	case s.managed:
		return s.finding(inspect.Unverified, setting, "no", want, "whether the server makes snapshots is not to be known: without, a restart has the budget begin anew with one token",
			"look where the server is configured, or let the user ask: "+s.grant("+config|get"))
	}
	return s.finding(inspect.Noted, setting, "no, and no snapshots", want, "a restart has the budget begin anew with one token: retries wait until more are earned", s.set(setting, want))
}

// cannotSave is about a server that takes no writes, as it cannot save them.
func cannotSave(s server) inspect.Finding {
	for _, setting := range []string{"aof_last_write_status", "rdb_last_bgsave_status"} {
		if s.info[setting] == "err" {
			return s.finding(inspect.Noted, setting, "err", "ok", "a server that cannot save takes no writes, and each worker has its own part of the budget alone",
				"see to the disk of the server: "+s.cli+" INFO persistence")
		}
	}
	return inspect.Finding{}
}

// cli begins a command for a server. The password is for whoever runs it to give.
func cli(o *redis.Options) string {
	host, port, _ := net.SplitHostPort(o.Addr)
	command := fmt.Sprintf("redis-cli -h %s -p %s", host, port)
	if o.Username != "" {
		command += " --user '" + strings.ReplaceAll(o.Username, "'", `'\''`) + "' --askpass"
	}
	if o.TLSConfig != nil {
		command += " --tls"
	}
	return command
}
