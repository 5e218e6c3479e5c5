package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/operate/internal/pgaddress"
)

// check notes what no single key shows.
func (d *decoder) check() {
	for name, b := range d.Brokers {
		b.check(d, "brokers."+name)
	}
	d.checkTopics()
	for name, b := range d.Budgets {
		if d.Brokers[name] != nil {
			d.fault("budgets."+name, "is the name of a broker, "+d.lineOf("brokers."+name), "use another")
		}
		b.check(d, "budgets."+name)
	}
	d.Store.check(d, "store")
	d.Serve.Web.check(d, "serve.listen", d.Serve.Listen, "127.0.0.1:7420", "token", d.Serve.Token != nil)
	d.Service.check(d)
}

func (s *Service) check(d *decoder) {
	s.Web.check(d, "service.listen", s.Listen, "127.0.0.1:7430", "tokens", len(s.Tokens) > 0)
	if s.Store != nil {
		s.Store.check(d, "service.store")
	}
	if s.Schedule != nil {
		s.Schedule.check(d, "service.schedule")
	}
	if s.Bodies.Directory != "" && s.Bodies.S3 != nil {
		d.fault("service.bodies", "are in a directory and in S3", "remove one")
	}
	if s.Dead != nil {
		s.Dead.check(d)
	}
}

// check notes where letters would not come back to the service, too.
func (s *Dead) check(d *decoder) {
	if s.Topic != "" && s.Topic == s.Origin {
		d.fault("service.dead.topic", "is the origin of its letters, too", "use a topic of its own")
	}
	b := d.broker("service.dead", s.Broker)
	switch {
	case b == nil || !slices.Contains(kinds, b.Kind):
	case b.Kind != Kafka:
		if d.lines["service.dead.group"] != nil {
			d.fault("service.dead.group", noGroups, noGroupsFix)
		}
	default:
		if s.Group == b.Group {
			d.fault("service.dead", "receives with "+quoted(s.Group)+", the group that collects letters", "use another as group")
		}
		for i, t := range d.Topics {
			if t.Broker == s.Broker && t.Name == s.Origin && !slices.Contains(t.Groups, s.Group) {
				d.fault(fmt.Sprintf("topics[%d]", i), "lacks the group "+quoted(s.Group)+", which the retry service receives with", "add it to its groups")
			}
		}
	}
}

const (
	noGroups    = "only Kafka has groups"
	noGroupsFix = "remove it: letters go back to the queue"
)

// broker is the one that has a name below a key; nil, with a fault, if there is none.
func (d *decoder) broker(key, name string) *Broker {
	b := d.Brokers[name]
	if b == nil && name != "" {
		d.fault(key+".broker", "there is no broker "+quoted(name), suggest(name, slices.Sorted(maps.Keys(d.Brokers))))
	}
	return b
}

func (b *Broker) check(d *decoder, key string) {
	d.both(key, "user", "password")
	d.both(key+".tls", "cert", "key")
	addresses := map[string]string{"management": b.Management}
	for i, address := range b.URLs {
		addresses[fmt.Sprintf("urls[%d]", i)] = address
	}
	for i, address := range b.Addresses {
		addresses[fmt.Sprintf("addresses[%d]", i)] = address
	}
	for name, address := range addresses {
		if strings.Contains(address, "@") {
			d.fault(key+"."+name, "has a user in it", "use the keys user and password")
		}
	}
	if b.MessageLimit > math.MaxInt32 {
		d.fault(key+".message_limit", "is too large", "use less than 2GiB")
	}
}

func (b *Redis) check(d *decoder, key string) {
	if b.User != "" && b.Password == nil {
		d.fault(key+".user", "has no password", "add it")
	}
	switch host, port, err := net.SplitHostPort(b.Redis); {
	case b.Redis == "":
	case err != nil || host == "" || port == "" || strings.ContainsAny(b.Redis, "@/?"):
		d.fault(key+".redis", "is no address", "write one such as redis.example.com:6379, and user and password under keys of their own")
	case b.Password != nil && b.TLS == nil && !b.AllowPlaintext && !pgaddress.IsLocal(host):
		d.fault(key+".redis", "lets the password travel where others can read it", "add tls: {}, or allow_plaintext: true below it")
	}
	d.both(key+".tls", "cert", "key")
}

// both demands two keys or none of them.
func (d *decoder) both(key, a, b string) {
	if (d.lines[key+"."+a] == nil) != (d.lines[key+"."+b] == nil) {
		d.fault(key, fmt.Sprintf("has one of %s and %s", a, b), "add the other")
	}
}

// use is what a topic of a broker is for. Each has one: collecting from a topic
// that workers read takes their messages.
type use struct{ topic, purpose, key string }

const work = "a topic that workers read"

func (d *decoder) checkTopics() {
	uses := map[[2]string]use{}
	for i, t := range d.Topics {
		key := fmt.Sprintf("topics[%d]", i)
		if b := d.broker(key, t.Broker); b != nil && slices.Contains(kinds, b.Kind) && b.Kind != Kafka && len(t.Groups) > 0 {
			d.fault(key+".groups", noGroups, noGroupsFix)
		}
		d.once(key+".groups", t.Groups)
		d.once(key+".dead", t.Dead)
		list := []use{{t.Name, work, key + ".name"}}
		for j, dead := range t.Dead {
			list = append(list, use{dead, "for dead letters", fmt.Sprintf("%s.dead[%d]", key, j)})
		}
		for _, u := range append(list, use{t.Receipts, "for receipts", key + ".receipts"}) {
			id := [2]string{t.Broker, u.topic}
			first, taken := uses[id]
			switch {
			case t.Broker == "" || u.topic == "":
			case !taken:
				uses[id] = u
			case first.purpose != u.purpose:
				d.fault(u.key, fmt.Sprintf("%s is %s, %s", quoted(u.topic), first.purpose, d.lineOf(first.key)), "use a topic of its own")
			case u.purpose == work:
				d.fault(u.key, "is there twice, first in "+d.lineOf(first.key), "remove one")
			}
		}
	}
}

func (d *decoder) lineOf(key string) string { return fmt.Sprintf("line %d", d.at(key).Line) }

// once notes what a list has twice.
func (d *decoder) once(key string, list []string) {
	for i, word := range list {
		if slices.Contains(list[:i], word) {
			d.fault(fmt.Sprintf("%s[%d]", key, i), quoted(word)+" is there twice", "remove one")
		}
	}
}

func (s *Store) check(d *decoder, key string) {
	if !pgaddress.Is(s.URL) {
		switch {
		case strings.Contains(s.URL, "://") || strings.HasPrefix(s.URL, ":") || strings.HasPrefix(s.URL, "file:") || strings.HasPrefix(s.URL, "sqlite:"):
			d.fault(key+".url", "is no store", "name a file, or a URL that begins with postgres://")
		case s.Password != nil:
			d.fault(key+".password", "only Postgres has one", "remove it")
		}
		return
	}
	database, plain, err := pgaddress.Plain(s.URL)
	switch _, isFile := errors.AsType[*fs.PathError](err); {
	case isFile: // the file may exist only where the store is used; without it, connecting fails
	case err != nil:
		d.fault(key+".url", err.Error(), "")
	case database == "":
		d.fault(key+".url", "names no database", "write one such as postgres://redrive@db.example.com/letters")
	case len(plain) > 0 && !s.AllowPlaintext:
		d.fault(key+".url", "lets letters and password travel to "+quoted(plain[0])+" where others can read them",
			"add sslmode=verify-full to it, or allow_plaintext: true below it")
	}
}

// StoreAddress is the store for whoever opens it: the name of a file, or a URL with
// the password in it, which is never to be printed. The error is a *[Fault].
func (c *Config) StoreAddress() (string, error) {
	if c.Store.URL == "" { // where there is a service
		return "", c.at("store.url").because("is required for letters", "add it", nil)
	}
	return c.address(&c.Store)
}

// TaskStoreAddress is StoreAddress for the store of the retry service.
func (c *Config) TaskStoreAddress() (string, error) { return c.address(c.Service.Store) }

// BodyDirectory is the directory for bodies of the retry service; empty for none.
func (c *Config) BodyDirectory() string {
	switch s := c.Service; {
	case s.Bodies.Directory != "":
		return beside(c.file, s.Bodies.Directory)
	case s.Bodies.S3 != nil || pgaddress.Is(s.Store.URL):
		return ""
	}
	return beside(c.file, c.Service.Store.URL) + ".bodies"
}

func (c *Config) address(s *Store) (string, error) {
	if !pgaddress.Is(s.URL) {
		return beside(c.file, s.URL), nil
	}
	if s.Password == nil {
		return s.URL, nil
	}
	password, err := s.Password.Read()
	if err != nil {
		return "", err
	}
	return pgaddress.WithPassword(s.URL, password), nil
}

// check refuses an address that other machines can reach if guard is not
// configured: the key of the token that callers must show. It also refuses the
// address if the token would travel in plain text.
func (w *Web) check(d *decoder, key, listen, such, guard string, guarded bool) {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case listen == "":
	case err != nil || port == "":
		d.fault(key, "is no address", "write one such as "+such)
	case !guarded && !pgaddress.IsLocal(host):
		d.fault(key, "other machines can reach it, and everybody may use it", "add "+guard+", or listen on 127.0.0.1")
	case w.TLS == nil && !w.BehindProxy && !pgaddress.IsLocal(host):
		d.fault(key, "lets "+guard+" travel in plain text", "add tls, or behind_proxy: true if a proxy in front encrypts, or listen on 127.0.0.1")
	}
}

// carriesPassword reports whether a text looks like a URL with a password, or
// like keywords of Postgres with a password. The text need not be well-formed.
func carriesPassword(s string) bool {
	_, rest, ok := strings.Cut(s, "://")
	if !ok {
		return pgaddress.HasPassword(s)
	}
	authority, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndex(rest, "@"); at >= 0 && strings.Contains(rest[:at], ":") && at < len(authority) {
		return true
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		name = strings.ToLower(name)
		for _, word := range []string{"pass", "pwd", "secret", "token", "credential"} {
			if strings.Contains(name, word) {
				return true
			}
		}
	}
	return false
}
