package cli

import (
	"sort"

	"github.com/spf13/cobra"

	"fleet/pkg/config"
	"fleet/pkg/fault"
	"fleet/pkg/identity"
	"fleet/pkg/output"
)

func newPeer(app *App) *cobra.Command {
	return group("peer", "Say which hosts are trusted", newPeerAdd(app), newPeerList(app), newPeerRemove(app))
}

func newPeerAdd(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "add HOST KEY",
		Short: "Trust what a host signs with a key",
		Long:  "Trust what a host signs with a key. A host may have several keys. The gateway reads the change when it starts.",
		Args:  args(cobra.ExactArgs(2)),
		RunE:  func(_ *cobra.Command, a []string) error { return runPeerAdd(app, a[0], a[1]) },
	}
}

func runPeerAdd(app *App, name, key string) error {
	host, err := identity.ParseHost(name)
	if err != nil {
		return err
	}
	k, err := parseKey(key)
	if err != nil {
		return err
	}
	c, err := app.config()
	if err != nil {
		return err
	}
	if host == c.Host {
		return fault.New(fault.Refused, "%s is this host itself", host).WithHint("run this on the other hosts")
	}
	if err := config.AddPeer(c.File, host, k); err != nil {
		return err
	}
	return showPeer(app, host, []identity.PublicKey{k})
}

func newPeerRemove(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "remove HOST [KEY]",
		Short: "Trust a host, or one of its keys, no more",
		Args:  args(cobra.RangeArgs(1, 2)),
		RunE:  func(_ *cobra.Command, a []string) error { return runPeerRemove(app, a) },
	}
}

func runPeerRemove(app *App, a []string) error {
	host, err := identity.ParseHost(a[0])
	if err != nil {
		return err
	}
	c, err := app.config()
	if err != nil {
		return err
	}
	keys := c.Peers[host].Keys
	if len(keys) == 0 {
		return fault.New(fault.NotFound, "%s is no peer of this host", host).WithHint("`fleet peer list` lists the peers")
	}
	if len(a) == 1 {
		if err := config.RemovePeer(c.File, host); err != nil {
			return err
		}
		return showPeer(app, host, keys)
	}
	k, err := parseKey(a[1])
	if err != nil {
		return err
	}
	if err := config.RemovePeerKey(c.File, host, k); err != nil {
		return err
	}
	return showPeer(app, host, []identity.PublicKey{k})
}

func newPeerList(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the trusted hosts and their keys",
		Args:  args(cobra.NoArgs),
		RunE:  func(*cobra.Command, []string) error { return runPeerList(app) },
	}
}

// peerRow is one key of a peer.
type peerRow struct {
	Host identity.Host  `json:"host"`
	Key  string         `json:"key"`
	ID   identity.KeyID `json:"key_id"`
}

var peerColumns = []output.Column[peerRow]{
	{Title: "host", Cell: func(r peerRow) string { return string(r.Host) }},
	{Title: "key", Cell: func(r peerRow) string { return r.Key }},
}

func runPeerList(app *App) error {
	c, err := app.config()
	if err != nil {
		return err
	}
	var rows []peerRow
	for host, peer := range c.Peers {
		rows = append(rows, peerRows(host, peer.Keys)...)
	}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].Host < rows[j].Host })
	return output.Rows(app.printer(), "peers", peerColumns, rows)
}

func showPeer(app *App, host identity.Host, keys []identity.PublicKey) error {
	p := app.printer()
	if !app.json {
		p.Say("the gateway reads this when it starts")
	}
	return output.Rows(p, "peers", peerColumns, peerRows(host, keys))
}

func peerRows(host identity.Host, keys []identity.PublicKey) []peerRow {
	rows := make([]peerRow, 0, len(keys))
	for _, k := range keys {
		rows = append(rows, peerRow{Host: host, Key: k.String(), ID: k.ID()})
	}
	return rows
}
