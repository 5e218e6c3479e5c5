package harness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// correlation is the number by which an answer names its request.
const correlation = 7

// errNotListed is what a Kafka answers that takes requests, but not yet part.
var errNotListed = errors.New("it lists no broker yet, not even itself")

// greetKafka asks what the broker is, and whether it takes part in its cluster.
func greetKafka(ctx context.Context, address string) (Greeting, error) {
	conn, err := dial(ctx, address)
	if err != nil {
		return Greeting{}, err
	}
	defer conn.Close()
	versions := &kmsg.ApiVersionsRequest{Version: 3, ClientSoftwareName: "probe", ClientSoftwareVersion: "1"}
	answer, err := ask(conn, versions)
	if err != nil {
		return Greeting{}, err
	}
	version, err := release(answer.(*kmsg.ApiVersionsResponse))
	if err != nil {
		return Greeting{}, err
	}
	metadata, err := ask(conn, &kmsg.MetadataRequest{Version: 1, Topics: []kmsg.MetadataRequestTopic{}})
	if err != nil {
		return Greeting{}, err
	}
	if len(metadata.(*kmsg.MetadataResponse).Brokers) == 0 {
		return Greeting{}, errNotListed
	}
	return Greeting{Product: "Kafka", Version: version}, nil
}

// release names the release by the newest format of the metadata that it knows:
// a Kafka does not tell its version. The ones of the harness are enough here.
func release(answer *kmsg.ApiVersionsResponse) (string, error) {
	if answer.ErrorCode != 0 {
		return "", fmt.Errorf("%w: error code %d", errMalformed, answer.ErrorCode)
	}
	for _, feature := range answer.SupportedFeatures {
		if feature.Name != "metadata.version" {
			continue
		}
		switch feature.MaxVersion {
		case 21:
			return "3.9", nil
		case 30:
			return "4.3", nil
		}
		return fmt.Sprintf("with metadata.version %d", feature.MaxVersion), nil
	}
	return "", fmt.Errorf("%w: no metadata.version", errMalformed)
}

// ask sends a request and returns the answer. It is for requests whose answers
// have nothing but their correlation before them.
func ask(conn io.ReadWriter, request kmsg.Request) (kmsg.Response, error) {
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, request, correlation)); err != nil {
		return nil, err
	}
	var head [8]byte // length of the rest, correlation
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxAnswer || binary.BigEndian.Uint32(head[4:]) != correlation {
		return nil, errMalformed
	}
	text := make([]byte, size-4)
	if _, err := io.ReadFull(conn, text); err != nil {
		return nil, err
	}
	answer := request.ResponseKind()
	return answer, answer.ReadFrom(text)
}
