package budget

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/redisguard"
)

// stub is a server that answers INFO and CONFIG GET, and says no to all else.
type stub struct {
	info  string
	save  string // what CONFIG GET save answers, or an error that begins with "-"
	asked []string
}

// serve answers on connections until the listener is closed.
func (s *stub) serve(l net.Listener) {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for {
				words, err := readCommand(in)
				if err != nil {
					return
				}
				fmt.Fprint(conn, s.answer(words))
			}
		})
	}
}

func (s *stub) answer(words []string) string {
	switch command := strings.ToUpper(words[0]); command {
	case "INFO":
		s.asked = append(s.asked, command)
		if strings.HasPrefix(s.info, "-") {
			return s.info + "\r\n"
		}
		return fmt.Sprintf("$%d\r\n%s\r\n", len(s.info), s.info)
	case "CONFIG":
		s.asked = append(s.asked, command+" "+words[1])
		if strings.HasPrefix(s.save, "-") {
			return s.save + "\r\n"
		}
		return fmt.Sprintf("*2\r\n$4\r\nsave\r\n$%d\r\n%s\r\n", len(s.save), s.save)
	default:
		return "-ERR unknown command '" + words[0] + "'\r\n"
	}
}

func readCommand(in *bufio.Reader) (words []string, err error) {
	number := func() (n int) {
		line, fault := in.ReadString('\n')
		if err = fault; err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(line[1:]))
		}
		return n
	}
	for range number() {
		word := make([]byte, number()+2)
		if err == nil {
			_, err = io.ReadFull(in, word)
		}
		if err != nil {
			break
		}
		words = append(words, string(word[:len(word)-2]))
	}
	return words, err
}

// TestInspect plants each fault.
func TestInspect(t *testing.T) {
	const good = "# Server\r\nredis_version:7.2.4\r\nrole:master\r\nmaxmemory:1073741824\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\naof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\n"
	with := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(good) }
	const unknown = "-ERR unknown command 'CONFIG', with args beginning with: 'get' 'save'"
	for _, tt := range []struct {
		name, info, save string
		want             []string // parts of findings, one each
	}{
		{"nothing", good, "", nil},
		{"snapshots", with("aof_enabled:1", "aof_enabled:0"), "3600 1 300 100", nil},
		{"no limit of memory", with("1073741824", "0", "noeviction", "allkeys-lru"), "", nil},
		{"evicts", with("noeviction", "volatile-lru"), "", []string{
			`noted "ADDRESS": maxmemory-policy is volatile-lru, and should be noeviction: the server may remove the budget`, `CONFIG SET maxmemory-policy noeviction`}},
		{"evicts, on a managed server", with("noeviction", "volatile-lru"), unknown, []string{`To mend it: set maxmemory-policy to noeviction where the server is configured: CONFIG is not allowed`}},
		{"forgets", with("aof_enabled:1", "aof_enabled:0"), "", []string{`noted "ADDRESS": appendonly is no, and no snapshots, and should be yes: a restart`}},
		{"may forget, on a managed server", with("aof_enabled:1", "aof_enabled:0"), unknown, []string{`unverified "ADDRESS": appendonly is no, and should be yes: whether the server makes snapshots`}},
		{"may not be asked about CONFIG", with("aof_enabled:1", "aof_enabled:0"), "-NOPERM User default has no permissions to run the 'config|get' command", []string{`ACL SETUSER NAME +config|get`}},
		{"a replica", with("role:master", "role:slave\r\nmaster_host:10.0.0.7\r\nmaster_port:6379"), "", []string{`noted "ADDRESS": role is replica, and should be primary: workers cannot write there, and each has its own part of the budget alone. To mend it: name the primary, 10.0.0.7:6379`}},
		{"cannot save", with("rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err"), "", []string{`noted "ADDRESS": rdb_last_bgsave_status is err, and should be ok`}},
		{"says little", "redis_version:7.2.4\r\naof_enabled:1\r\n", "", []string{`unverified "ADDRESS": maxmemory-policy is not set`}},
		{"may not be asked", "-NOPERM User default has no permissions to run the 'info' command", "", []string{`unverified "ADDRESS": it may evict the budget, or forget it: the user may not ask (INFO). To mend it: redis-cli -h 127.0.0.1 -p`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := &stub{info: tt.info, save: tt.save}
			var serving sync.WaitGroup
			serving.Go(func() { s.serve(l) })
			client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), MaxRetries: -1, DisableIdentity: true})
			found, err := Inspect(t.Context(), client)
			client.Close()
			l.Close()
			serving.Wait()
			if err != nil || (len(found) == 0) != (len(tt.want) == 0) || len(found) > 1 {
				t.Fatalf("found %v, error %v, want %q", found, err, tt.want)
			}
			for _, f := range found {
				text := strings.ReplaceAll(f.Severity.String()+" "+f.String(), fmt.Sprintf("%q", l.Addr()), `"ADDRESS"`)
				for _, want := range tt.want {
					if !strings.Contains(text, want) || f.Why == "" || f.Fix == "" || f.See == "" {
						t.Errorf("found\n%s\nwant\n%s", text, want)
					}
				}
			}
			for _, command := range s.asked {
				if command != "INFO" && command != "CONFIG get" {
					t.Errorf("it asked %s", command)
				}
			}
		})
	}
}

// TestInspectWithoutAnswer does not take a server for good that says nothing, or that
// wants a login.
func TestInspectWithoutAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { (&stub{info: "-NOAUTH Authentication required."}).serve(l) })
	for _, up := range []bool{true, false} {
		if !up {
			l.Close()
			serving.Wait()
		}
		client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), MaxRetries: -1})
		if found, err := Inspect(t.Context(), client); err == nil || !strings.Contains(err.Error(), "ask Redis at 127.0.0.1:") {
			t.Errorf("found %v, error %v", found, err)
		}
		client.Close()
	}
}

// TestAttackAbsurdAnswers inspects a broken or hostile server.
func TestAttackAbsurdAnswers(t *testing.T) {
	good := map[string]string{"info": "$13\r\nrole:master\r\n\r\n", "config": "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"}
	redistest.Hostile(t, good, func(t *testing.T, client redis.UniversalClient) func() error {
		alone, ok := client.(*redis.Client)
		if !ok {
			t.Skip("the command connects to one server")
		}
		redisguard.Protect(alone)
		return func() error {
			_, err := Inspect(t.Context(), alone)
			return err
		}
	})
}
