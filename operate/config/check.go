package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/operate/internal/pgaddress"
)

// check notes what no single key shows.
func (c *Config) check(d *decoder) {
	for name, b := range c.Brokers {
		b.check(d, "brokers."+name)
	}
	c.checkTopics(d)
	for name, b := range c.Budgets {
		if c.Brokers[name] != nil {
			d.wrong("budgets."+name, "is the name of a broker, "+d.lineOf("brokers."+name), "use another")
		}
		b.check(d, "budgets."+name)
	}
	c.Store.check(d, "store")
	c.Serve.check(d)
	c.checkService(d)
}

func (c *Config) checkService(d *decoder) {
	s := &c.Service
	s.Web.check(d, "service.listen", s.Listen, "127.0.0.1:7430", "tokens", len(s.Tokens) > 0)
	if s.Store != nil {
		s.Store.check(d, "service.store")
	}
	if s.Schedule != nil {
		s.Schedule.check(d, "service.schedule")
	}
	if s.Bodies.Directory != "" && s.Bodies.S3 != nil {
		d.wrong("service.bodies", "are in a directory and in S3", "remove one")
	}
	if s.Dead != nil {
		c.checkDead(d, s.Dead)
	}
}

func (c *Config) checkDead(d *decoder, dead *Dead) {
	if dead.Topic != "" && dead.Topic == dead.Origin {
		d.wrong("service.dead.topic", "is the origin of its letters, too", "use a topic of its own")
	}
	b := c.Brokers[dead.Broker]
	_, grouped := d.lines["service.dead.group"]
	switch {
	case dead.Broker == "":
	case b == nil:
		d.wrong("service.dead.broker", "there is no broker "+quoted(dead.Broker), suggest(dead.Broker, slices.Sorted(maps.Keys(c.Brokers))))
	case b.Kind == Kafka:
		c.checkGroup(d, dead, b)
	case slices.Contains(kinds, b.Kind) && grouped:
		d.wrong("service.dead.group", "only Kafka has groups", "remove it: letters go back to the queue")
	}
}

// checkGroup notes where letters would not come back to the service.
func (c *Config) checkGroup(d *decoder, dead *Dead, b *Broker) {
	if dead.Group == b.Group {
		d.wrong("service.dead", "receives with "+quoted(dead.Group)+", the group that collects letters", "use another as group")
	}
	for i, t := range c.Topics {
		if t.Broker == dead.Broker && t.Name == dead.Origin && !slices.Contains(t.Groups, dead.Group) {
			d.wrong(fmt.Sprintf("topics[%d]", i), "lacks the group "+quoted(dead.Group)+", which the retry service receives with", "add it to its groups")
		}
	}
}

func (b *Broker) check(d *decoder, key string) {
	d.both(key, "user", "password")
	d.both(key+".tls", "cert", "key")
	for i, address := range slices.Concat(b.URLs, b.Addresses) {
		if strings.Contains(address, "@") {
			d.wrong(fmt.Sprintf("%s.%s[%d]", key, addressKey[b.Kind], i), "has a user in it", "use the keys user and password")
		}
	}
	if strings.Contains(b.Management, "@") {
		d.wrong(key+".management", "has a user in it", "use the keys user and password")
	}
}

func (b *Redis) check(d *decoder, key string) {
	if b.User != "" && b.Password == nil {
		d.wrong(key+".user", "has no password", "add it")
	}
	switch host, port, err := net.SplitHostPort(b.Redis); {
	case b.Redis == "":
	case err != nil || host == "" || port == "" || strings.ContainsAny(b.Redis, "@/?"):
		d.wrong(key+".redis", "is no address", "write one such as redis.example.com:6379, and user and password under keys of their own")
	case b.Password != nil && b.TLS == nil && !b.AllowPlaintext && !pgaddress.IsLocal(host):
		d.wrong(key+".redis", "lets the password travel where others can read it", "add tls: {}, or allow_plaintext: true below it")
	}
	d.both(key+".tls", "cert", "key")
}

// both demands two keys or none of them.
func (d *decoder) both(key, a, b string) {
	_, hasA := d.lines[key+"."+a]
	_, hasB := d.lines[key+"."+b]
	if hasA != hasB {
		d.wrong(key, fmt.Sprintf("has one of %s and %s", a, b), "add the other")
	}
}

var addressKey = map[string]string{RabbitMQ: "urls", Kafka: "addresses"}

// role is what a topic of a broker is for. Each has one: collecting from a topic
// that workers read takes their messages.
type role struct{ name, key string }

func (c *Config) checkTopics(d *decoder) {
	names := slices.Sorted(maps.Keys(c.Brokers))
	roles := map[[2]string]role{}
	for i, t := range c.Topics {
		key := fmt.Sprintf("topics[%d]", i)
		b, ok := c.Brokers[t.Broker]
		switch {
		case t.Broker == "":
		case !ok:
			d.wrong(key+".broker", "there is no broker "+quoted(t.Broker), suggest(t.Broker, names))
		case slices.Contains(kinds, b.Kind) && b.Kind != Kafka && len(t.Groups) > 0:
			d.wrong(key+".groups", "only Kafka has groups", "remove it: letters go back to the queue")
		}
		d.once(key+".groups", t.Groups)
		d.once(key+".dead", t.Dead)
		if first, twice := d.claim(roles, t, t.Name, role{"a topic that workers read", key + ".name"}); twice {
			d.wrong(key+".name", "is there twice, first in "+d.lineOf(first.key), "remove one")
		}
		for j, dead := range t.Dead {
			d.claim(roles, t, dead, role{"for dead letters", fmt.Sprintf("%s.dead[%d]", key, j)})
		}
		d.claim(roles, t, t.Receipts, role{"for receipts", key + ".receipts"})
	}
}

// claim gives a topic a role, and notes that it has another. It returns the key
// that gave it the same role before.
func (d *decoder) claim(roles map[[2]string]role, t Topic, topic string, r role) (first role, twice bool) {
	if topic == "" || t.Broker == "" {
		return role{}, false
	}
	id := [2]string{t.Broker, topic}
	first, ok := roles[id]
	switch {
	case !ok:
		roles[id] = r
	case first.name != r.name:
		d.wrong(r.key, fmt.Sprintf("%s is %s, %s", quoted(topic), first.name, d.lineOf(first.key)), "use a topic of its own")
	default:
		return first, true
	}
	return role{}, false
}

func (d *decoder) lineOf(key string) string { return fmt.Sprintf("line %d", d.lines[key].line) }

// once notes what a list has twice.
func (d *decoder) once(key string, list []string) {
	for i, word := range list {
		if slices.Contains(list[:i], word) {
			d.wrong(fmt.Sprintf("%s[%d]", key, i), quoted(word)+" is there twice", "remove one")
		}
	}
}

func (s *Store) check(d *decoder, key string) {
	if !pgaddress.Is(s.URL) {
		switch {
		case strings.Contains(s.URL, "://") || strings.HasPrefix(s.URL, ":") || strings.HasPrefix(s.URL, "file:"):
			d.wrong(key+".url", "is no store", "name a file, or a URL that begins with postgres://")
		case s.Password != nil:
			d.wrong(key+".password", "only Postgres has one", "remove it")
		}
		return
	}
	database, plain, err := pgaddress.Plain(s.URL)
	switch _, isFile := errors.AsType[*fs.PathError](err); {
	case isFile: // the file may exist only where the store is used; without it, connecting fails
	case err != nil:
		d.wrong(key+".url", err.Error(), "")
	case database == "":
		d.wrong(key+".url", "names no database", "write one such as postgres://redrive@db.example.com/letters")
	case len(plain) > 0 && !s.AllowPlaintext:
		d.wrong(key+".url", "lets letters and password travel to "+quoted(plain[0])+" where others can read them",
			"add sslmode=verify-full to it, or allow_plaintext: true below it")
	}
}

// StoreAddress is the store for whoever opens it: the name of a file, or a URL with
// the password in it, which is never to be printed. The error is a *[Fault].
func (c *Config) StoreAddress() (string, error) {
	if c.Store.URL == "" { // where there is a service
		return "", &Fault{File: c.file, Key: "store.url", Problem: "is required for letters", Fix: "add it"}
	}
	return c.address(&c.Store)
}

// TaskStoreAddress is StoreAddress for the store of the retry service.
func (c *Config) TaskStoreAddress() (string, error) {
	if c.Service.Store == nil {
		return beside(c.file, "service.db"), nil
	}
	return c.address(c.Service.Store)
}

// BodyDirectory is the directory for bodies of the retry service; empty for none.
func (c *Config) BodyDirectory() string {
	s := c.Service
	if s.Bodies.Directory != "" {
		return beside(c.file, s.Bodies.Directory)
	}
	if s.Bodies.S3 != nil {
		return ""
	}
	url := "service.db"
	if s.Store != nil {
		if pgaddress.Is(s.Store.URL) {
			return ""
		}
		url = s.Store.URL
	}
	return beside(c.file, url) + ".bodies"
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

func (s *Serve) check(d *decoder) {
	s.Web.check(d, "serve.listen", s.Listen, "127.0.0.1:7420", "token", s.Token != nil)
}

// check refuses an address that other machines can reach if guard is not
// configured: the key of the token that callers must show. It also refuses the
// address if the token would travel in plain text.
func (w *Web) check(d *decoder, key, listen, such, guard string, guarded bool) {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case listen == "":
	case err != nil || port == "":
		d.wrong(key, "is no address", "write one such as "+such)
	case !guarded && !pgaddress.IsLocal(host):
		d.wrong(key, "other machines can reach it, and everybody may use it", "add "+guard+", or listen on 127.0.0.1")
	case w.TLS == nil && !w.BehindProxy && !pgaddress.IsLocal(host):
		d.wrong(key, "lets "+guard+" travel in plain text", "add tls, or behind_proxy: true if a proxy in front encrypts, or listen on 127.0.0.1")
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
