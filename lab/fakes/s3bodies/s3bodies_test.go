// Package s3bodies runs the store of bodies on a server of the S3 protocol.
package s3bodies

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/redrive-go/redrive/operate/service/bodies"
	"github.com/redrive-go/redrive/operate/service/bodies/bodiestest"
	"github.com/redrive-go/redrive/operate/service/bodies/s3bodies"
)

func TestBucket(t *testing.T) {
	for _, prefix := range []string{"", "redrive/bodies", "a+b c"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			bodiestest.Run(t, func(t *testing.T) bodies.Store {
				server := httptest.NewServer(gofakes3.New(s3mem.New()).Server())
				t.Cleanup(server.Close)
				client := s3.New(s3.Options{
					BaseEndpoint: &server.URL, UsePathStyle: true, Region: "us-east-1",
					Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
						return aws.Credentials{AccessKeyID: "any", SecretAccessKey: "any"}, nil
					}),
				})
				if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("bodies")}); err != nil {
					t.Fatal(err)
				}
				return &s3bodies.Bucket{Client: client, Name: "bodies", Prefix: prefix}
			})
		})
	}
}
