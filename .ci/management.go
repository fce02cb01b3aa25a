//go:build ignore

// Command management stands in for the two calls of RabbitMQ's management API that
// the client library's tests make: list the connections, and close one. It passes
// AMQP connections on to brokers that have no such API, byte by byte, and learns
// from a client's first frame what it calls itself.
//
//	management BROKER...   each a HOST:PORT
//
// It prints one line for each broker, the HOST:PORT to connect to in its place,
// and serves the API at localhost:15672, which those tests have built in. It runs
// until it is killed.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

const api = "127.0.0.1:15672"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "management:", err)
		os.Exit(1)
	}
}

func run(brokers []string) error {
	served, err := net.Listen("tcp", api)
	if err != nil {
		return fmt.Errorf("the tests want the management API there: %w", err)
	}
	all := &links{open: map[string]*link{}}
	for _, broker := range brokers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		go func() { // ends with the process
			for {
				client, err := l.Accept()
				if err != nil {
					return
				}
				go all.relay(client.(*net.TCPConn), broker)
			}
		}()
	}
	http.HandleFunc("GET /api/connections/", all.list)
	http.HandleFunc("DELETE /api/connections/{id}", all.drop)
	return http.Serve(served, nil)
}

// links are the connections that are open.
type links struct {
	mu   sync.Mutex
	open map[string]*link // by id; guarded by mu
}

// link is one connection from a client to a broker.
type link struct {
	id, name       string
	client, broker *net.TCPConn

	mu      sync.Mutex // held while a frame is written to the client
	dropped bool       // the client has been told the end; guarded by mu
}

func (ls *links) list(w http.ResponseWriter, _ *http.Request) {
	type properties struct {
		Name string `json:"connection_name"`
	}
	type connection struct {
		ID         string     `json:"name"`
		Properties properties `json:"client_properties"`
	}
	found := []connection{}
	ls.mu.Lock()
	for _, l := range ls.open {
		found = append(found, connection{l.id, properties{l.name}})
	}
	ls.mu.Unlock()
	_ = json.NewEncoder(w).Encode(found) // the caller has gone
}

func (ls *links) drop(w http.ResponseWriter, r *http.Request) {
	ls.mu.Lock()
	l := ls.open[r.PathValue("id")]
	ls.mu.Unlock()
	if l == nil {
		http.NotFound(w, r)
		return
	}
	l.drop()
	w.WriteHeader(http.StatusNoContent)
}

// relay serves one client.
func (ls *links) relay(client *net.TCPConn, address string) {
	defer client.Close()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return // the client sees its connection end
	}
	l := &link{id: client.RemoteAddr().String() + " -> " + address, client: client, broker: conn.(*net.TCPConn)}
	defer l.broker.Close()
	down := make(chan struct{})
	go func() { // ends with the connection
		defer close(down)
		l.down()
	}()
	l.up(func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		ls.open[l.id] = l
	})
	<-down
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.open, l.id)
}

// up passes on what the client sends, and calls known once it has said its name.
func (l *link) up(known func()) {
	defer l.broker.CloseWrite()
	in := bufio.NewReader(l.client)
	header := make([]byte, 8)
	if _, err := io.ReadFull(in, header); err != nil {
		return
	}
	if _, err := l.broker.Write(header); err != nil {
		return
	}
	frame, err := readFrame(in)
	if err != nil {
		return
	}
	l.name = nameIn(frame)
	known()
	if _, err := l.broker.Write(frame); err != nil {
		return
	}
	_, _ = io.Copy(l.broker, in)
	_, _ = io.Copy(io.Discard, in) // what a dropped client still says
}

// down passes on what the broker sends, frame by frame.
func (l *link) down() {
	defer l.client.CloseWrite()
	in := bufio.NewReader(l.broker)
	for {
		frame, err := readFrame(in)
		l.mu.Lock()
		if l.dropped {
			l.mu.Unlock()
			return
		}
		if len(frame) > 0 {
			_, _ = l.client.Write(frame) // a client that has gone ends up as well
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// drop ends the connection as the management API does: the client is told 320.
func (l *link) drop() {
	const text = "CONNECTION_FORCED - Closed via management plugin"
	_ = l.broker.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped {
		return
	}
	l.dropped = true
	method := binary.BigEndian.AppendUint16([]byte{0, 10, 0, 50}, 320)
	method = append(append(method, byte(len(text))), text...)
	method = append(method, 0, 0, 0, 0)
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(method)))
	frame = append(append(frame, method...), 0xCE)
	_, _ = l.client.Write(frame) // a client that has gone needs no word
	_ = l.client.SetReadDeadline(time.Now().Add(10 * time.Second))
}

// readFrame reads one frame as it is on the wire. With an error it returns what
// there is instead: a broker that refuses the protocol sends no frame.
func readFrame(in *bufio.Reader) ([]byte, error) {
	const head, most = 7, 1 << 20
	b, err := in.Peek(head)
	if err != nil {
		rest, _ := io.ReadAll(io.LimitReader(in, head))
		return rest, err
	}
	n := int64(binary.BigEndian.Uint32(b[3:])) + head + 1
	if b[0] > 8 || n > most {
		rest, _ := io.ReadAll(io.LimitReader(in, most))
		return rest, errors.New("no frame")
	}
	frame := make([]byte, n)
	got, err := io.ReadFull(in, frame)
	return frame[:got], err
}

// nameIn finds the client's name in its connection.start-ok.
func nameIn(frame []byte) string {
	_, after, ok := bytes.Cut(frame, []byte("\x0fconnection_nameS"))
	if !ok || len(after) < 4 {
		return ""
	}
	n := binary.BigEndian.Uint32(after)
	return string(after[4:min(len(after), int(n)+4)])
}
