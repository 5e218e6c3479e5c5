package redisschedule

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redrive-go/redrive/integration/redistest"
	"github.com/redrive-go/redrive/operate/service"
)

// TestAttackAbsurdAnswers calls each method against a broken or hostile server.
func TestAttackAbsurdAnswers(t *testing.T) {
	good := map[string]string{
		"zadd":   ":1\r\n",
		"zrem":   ":1\r\n",
		"zrange": "*0\r\n",
		"eval":   "*2\r\n*0\r\n*0\r\n",
	}
	some := map[string]string{
		"zadd":          ":1\r\n",
		"zrem":          ":1\r\n",
		"zrange":        "*2\r\n$1\r\n1\r\n$1\r\n2\r\n", // tenants, and a row with its time
		"zrangebyscore": "*2\r\n$1\r\n1\r\n$1\r\n2\r\n",
		"eval":          "*2\r\n*2\r\n$1\r\n7\r\n$1\r\n1\r\n*0\r\n",
	}
	for name, tt := range map[string]struct {
		good map[string]string
		call func(*testing.T, *Schedule) error
	}{
		"Add": {good, func(t *testing.T, s *Schedule) error {
			return s.Add(t.Context(), service.Due{Row: 1, Tenant: "1", At: time.Now()}, service.Due{Row: 2, Tenant: "2", At: time.Now()})
		}},
		"Take nothing": {good, func(t *testing.T, s *Schedule) error {
			_, _, err := s.Take(t.Context(), time.Now(), 2)
			return err
		}},
		"claim": {some, func(t *testing.T, s *Schedule) error {
			_, err := s.claim(t.Context(), []string{"1", "2"}, time.Now().UnixMilli(), 1)
			return err
		}},
		"Take": {some, func(t *testing.T, s *Schedule) error {
			_, err := s.takeDue(t.Context(), time.Now().UnixMilli(), 2)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Hostile(t, tt.good, func(t *testing.T, client redis.UniversalClient) func() error {
				s, err := New(client, "")
				must(t, err)
				return func() error { return tt.call(t, s) }
			})
		})
	}
}
