// Asks an endpoint picker for an endpoint, as a gateway does for one request, and prints what it answers and after how many seconds.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const patience = 5 * time.Minute

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: ask HOST:PORT MODEL")
		os.Exit(2)
	}
	began := time.Now()
	answer, err := ask(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
	fmt.Printf("%s after %.1f s\n", answer, time.Since(began).Seconds())
}

// ask sends the headers and the body of a completion, and waits for the endpoint or the refusal.
func ask(address, model string) (string, error) {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := extproc.NewExternalProcessorClient(connection).Process(ctx)
	if err != nil {
		return "", err
	}
	headers := &core.HeaderMap{}
	for _, header := range [][2]string{{":method", "POST"}, {":path", "/v1/completions"}, {"content-type", "application/json"}} {
		headers.Headers = append(headers.Headers, &core.HeaderValue{Key: header[0], RawValue: []byte(header[1])})
	}
	body := fmt.Appendf(nil, `{"model": %q, "prompt": "hello", "max_tokens": 10}`, model)
	requests := []*extproc.ProcessingRequest{
		{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headers}}},
		{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: true}}},
	}
	for _, request := range requests {
		if err := stream.Send(request); err != nil {
			return "", err
		}
	}
	for {
		reply, err := stream.Recv()
		if err != nil {
			return "", err
		}
		if refusal := reply.GetImmediateResponse(); refusal != nil {
			return fmt.Sprintf("refused with %d", refusal.GetStatus().GetCode()), nil
		}
		for _, set := range reply.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if set.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
				return "endpoint " + string(set.GetHeader().GetRawValue()), nil
			}
		}
	}
}
