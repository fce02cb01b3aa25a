package testscript_test

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	server "fleet/pkg/broker"
)

// lavinMain is the program `lavin --listen HOST:PORT`: the embedded broker with
// LavinMQ's answers, and otherwise like `fleet broker run --json`. There is no
// package of LavinMQ to test with.
func lavinMain() int {
	listen := flag.String("listen", "127.0.0.1:0", "`HOST:PORT`")
	flag.Parse()
	if err := serveLavin(*listen, filepath.Join(os.Getenv("FLEET_DIR"), "broker")); err != nil {
		fmt.Fprintln(os.Stderr, "lavin:", err)
		return 1
	}
	return 0
}

func serveLavin(listen, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	password, err := passwordIn(filepath.Join(dir, "password"))
	if err != nil {
		return err
	}
	s, err := server.Open(server.Options{
		Dir: filepath.Join(dir, "data"), Answers: server.LavinMQ, Version: "2.9.1",
		Authenticate: func(u, p string) bool {
			return u == "fleet" && subtle.ConstantTimeCompare([]byte(p), []byte(password)) == 1
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return errors.Join(err, s.Close(context.Background()))
	}
	at := url.URL{Scheme: "amqp", User: url.UserPassword("fleet", password), Host: l.Addr().String(), Path: "/"}
	file := filepath.Join(dir, "url")
	if err := os.WriteFile(file, []byte(at.String()+"%2f\n"), 0o600); err != nil {
		return err
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends with Close
	if err := json.NewEncoder(os.Stdout).Encode(ready{Event: "ready", URLFile: file}); err != nil {
		return err
	}
	select {
	case err := <-served:
		return err
	case <-told:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(s.Close(ctx), <-served)
}

// passwordIn is a random password, kept over restarts.
func passwordIn(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text())
		err = os.WriteFile(file, text, 0o600)
	}
	return strings.TrimSpace(string(text)), err
}
