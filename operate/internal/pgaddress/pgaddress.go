// Package pgaddress reads the address of a Postgres as the driver does. An
// address is a URL, or keywords such as host=localhost dbname=letters. The
// environment and a service file can add to it.
package pgaddress

import (
	"errors"
	"io/fs"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// keyword matches a parameter that tells the keyword form from the name of a
// file.
var keyword = regexp.MustCompile(`(?:^|\s)(?:host|hostaddr|port|dbname|database|user|password|passfile|service|servicefile|ssl\w+)\s*=`)

// Is reports whether a text is the address of a Postgres.
func Is(address string) bool {
	return isURL(address) || !strings.Contains(address, "://") && keyword.MatchString(address)
}

func isURL(address string) bool {
	return strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://")
}

var (
	// ErrAddress says that an address cannot be read.
	ErrAddress = errors.New("is no address of a database of Postgres, such as postgres://redrive@db.example.com/letters?sslmode=verify-full")

	secret = regexp.MustCompile(`(?i)(?:^|\s)\w*(?:pass|password|pwd|secret|token|credentials?)\s*=`)
)

// Plain reads an address as the driver does. It returns the database, and the
// hosts to which the driver may connect without encryption. Hosts does not have
// this machine and its sockets. The error comes from [Failure].
func Plain(address string) (database string, hosts []string, err error) {
	c, err := pgconn.ParseConfig(address)
	if err != nil {
		return "", nil, Failure(err)
	}
	tries := append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	for _, try := range tries {
		network, _ := pgconn.NetworkAddress(try.Host, try.Port)
		if try.TLSConfig == nil && network != "unix" && !IsLocal(try.Host) && !slices.Contains(hosts, try.Host) {
			hosts = append(hosts, try.Host)
		}
	}
	return c.Database, hosts, nil
}

// IsLocal reports whether a host is this machine and no other.
func IsLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Failure returns an error of the driver without the address: the address may
// have a password that the driver did not find. If a file cannot be read, the
// error is an *fs.PathError.
func Failure(err error) error {
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file
	}
	for _, about := range []string{"failed to read service", "failed to configure TLS"} {
		if i := strings.LastIndex(err.Error(), about); i >= 0 {
			return errors.New("cannot be used: " + err.Error()[i:])
		}
	}
	return ErrAddress
}

// HasPassword reports whether an address in the keyword form has a password.
func HasPassword(address string) bool {
	return !isURL(address) && Is(address) && secret.MatchString(address)
}

// WithPassword adds a password to an address.
func WithPassword(address, password string) string {
	if !isURL(address) {
		return address + " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'"
	}
	sign := "?"
	if strings.Contains(address, "?") {
		sign = "&"
	}
	return address + sign + "password=" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20")
}
