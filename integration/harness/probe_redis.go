package harness

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
)

// greetRedis asks for what the server says of itself.
func greetRedis(ctx context.Context, address string) (Greeting, error) {
	at, err := url.Parse(address)
	if err != nil {
		return Greeting{}, err
	}
	conn, err := dial(ctx, at.Host)
	if err != nil {
		return Greeting{}, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "INFO server\r\n"); err != nil {
		return Greeting{}, err
	}
	return readInfo(conn)
}

// readInfo reads one text with its length before it: lines of names and values.
func readInfo(r io.Reader) (Greeting, error) {
	in := bufio.NewReader(io.LimitReader(r, maxAnswer))
	head, err := in.ReadString('\n')
	if err != nil {
		return Greeting{}, err
	}
	head = strings.TrimSpace(head)
	if reason, refused := strings.CutPrefix(head, "-"); refused {
		return Greeting{}, fmt.Errorf("it refuses: %s", reason)
	}
	length, isText := strings.CutPrefix(head, "$")
	size, err := strconv.Atoi(length)
	if err != nil || !isText || size < 0 || size > maxAnswer {
		return Greeting{}, errMalformed
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return Greeting{}, err
	}
	info := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[key] = value
	}
	if version := info["valkey_version"]; version != "" { // redis_version is the Redis version that it is compatible with
		return Greeting{Product: "Valkey", Version: version}, nil
	}
	if version := info["redis_version"]; version != "" {
		return Greeting{Product: "Redis", Version: version}, nil
	}
	return Greeting{}, fmt.Errorf("%w: it names no version", errMalformed)
}
