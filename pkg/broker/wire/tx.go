package wire

// TxSelect comes from clients.
type TxSelect struct{}

func (*TxSelect) Class() uint16      { return 90 }
func (*TxSelect) ID() uint16         { return 10 }
func (*TxSelect) Name() string       { return "tx.select" }
func (*TxSelect) walk(c codec) codec { return c }

// TxSelectOK goes to clients.
type TxSelectOK struct{}

func (*TxSelectOK) Class() uint16      { return 90 }
func (*TxSelectOK) ID() uint16         { return 11 }
func (*TxSelectOK) Name() string       { return "tx.select-ok" }
func (*TxSelectOK) walk(c codec) codec { return c }

// TxCommit comes from clients.
type TxCommit struct{}

func (*TxCommit) Class() uint16      { return 90 }
func (*TxCommit) ID() uint16         { return 20 }
func (*TxCommit) Name() string       { return "tx.commit" }
func (*TxCommit) walk(c codec) codec { return c }

// TxCommitOK goes to clients.
type TxCommitOK struct{}

func (*TxCommitOK) Class() uint16      { return 90 }
func (*TxCommitOK) ID() uint16         { return 21 }
func (*TxCommitOK) Name() string       { return "tx.commit-ok" }
func (*TxCommitOK) walk(c codec) codec { return c }

// TxRollback comes from clients.
type TxRollback struct{}

func (*TxRollback) Class() uint16      { return 90 }
func (*TxRollback) ID() uint16         { return 30 }
func (*TxRollback) Name() string       { return "tx.rollback" }
func (*TxRollback) walk(c codec) codec { return c }

// TxRollbackOK goes to clients.
type TxRollbackOK struct{}

func (*TxRollbackOK) Class() uint16      { return 90 }
func (*TxRollbackOK) ID() uint16         { return 31 }
func (*TxRollbackOK) Name() string       { return "tx.rollback-ok" }
func (*TxRollbackOK) walk(c codec) codec { return c }

// ConfirmSelect comes from clients.
type ConfirmSelect struct {
	NoWait bool
}

func (*ConfirmSelect) Class() uint16 { return 85 }
func (*ConfirmSelect) ID() uint16    { return 10 }
func (*ConfirmSelect) Name() string  { return "confirm.select" }

func (m *ConfirmSelect) walk(c codec) codec {
	c.bits(&m.NoWait)
	return c
}

// ConfirmSelectOK goes to clients.
type ConfirmSelectOK struct{}

func (*ConfirmSelectOK) Class() uint16      { return 85 }
func (*ConfirmSelectOK) ID() uint16         { return 11 }
func (*ConfirmSelectOK) Name() string       { return "confirm.select-ok" }
func (*ConfirmSelectOK) walk(c codec) codec { return c }
