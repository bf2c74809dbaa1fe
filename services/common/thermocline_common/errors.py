"""MongoDB's error codes that Thermocline answers with or reacts to, and its own exceptions.

Codes: MongoDB 6.0, src/mongo/base/error_codes.yml.
"""

from enum import IntEnum


class Code(IntEnum):
    """Error codes by MongoDB's own names."""

    InternalError = 1
    BadValue = 2
    FailedToParse = 9
    Unauthorized = 13
    TypeMismatch = 14
    Overflow = 15
    InvalidLength = 16
    ProtocolError = 17
    AuthenticationFailed = 18
    IllegalOperation = 20
    InvalidBSON = 22
    LockTimeout = 24
    NamespaceNotFound = 26
    IndexNotFound = 27
    PathNotViable = 28
    CursorNotFound = 43
    NamespaceExists = 48
    MaxTimeMSExpired = 50
    CommandNotFound = 59
    WriteConcernFailed = 64
    ImmutableField = 66
    InvalidOptions = 72
    InvalidNamespace = 73
    HostUnreachable = 6
    HostNotFound = 7
    UnknownError = 8
    NetworkTimeout = 89
    ShutdownInProgress = 91
    OperationFailed = 96
    DocumentValidationFailure = 121
    FailedToSatisfyReadPreference = 133
    ReadConcernMajorityNotAvailableYet = 134
    CappedPositionLost = 136
    ConflictingOperationInProgress = 117
    WriteConflict = 112
    CommandNotSupported = 115
    CommandNotSupportedOnView = 166
    IndexOptionsConflict = 85
    InterruptedAtShutdown = 11600
    Interrupted = 11601
    InterruptedDueToReplStateChange = 11602
    PrimarySteppedDown = 189
    NotWritablePrimary = 10107
    NotPrimaryNoSecondaryOk = 13435
    NotPrimaryOrSecondary = 13436
    TransactionTooOld = 225
    SnapshotTooOld = 239
    SnapshotUnavailable = 246
    NoSuchTransaction = 251
    ExceededTimeLimit = 262
    OperationNotSupportedInTransaction = 263
    ClientDisconnect = 279
    ChangeStreamFatalError = 280
    ChangeStreamHistoryLost = 286
    APIStrictError = 323
    MechanismUnavailable = 334
    UnsupportedOpQueryCommand = 352
    CollectionUUIDMismatch = 361
    TransactionTooLargeForCache = 388
    SocketException = 9001
    BSONObjectTooLarge = 10334
    DuplicateKey = 11000
    OutOfDiskSpace = 14031


NOT_PRIMARY: frozenset[int] = frozenset(
    {
        Code.InterruptedAtShutdown,
        Code.InterruptedDueToReplStateChange,
        Code.NotWritablePrimary,
        Code.NotPrimaryNoSecondaryOk,
        Code.NotPrimaryOrSecondary,
        Code.PrimarySteppedDown,
        Code.ShutdownInProgress,
    }
)
"""The server that answered so is (or was) not the primary: look for the primary again, then retry."""


INTERRUPTIONS: frozenset[int] = frozenset(
    {
        Code.LockTimeout,
        Code.MaxTimeMSExpired,
        Code.ExceededTimeLimit,
        Code.ClientDisconnect,
        Code.InterruptedAtShutdown,
        Code.Interrupted,
        Code.InterruptedDueToReplStateChange,
        237,  # CursorKilled
        290,  # TransactionExceededLifetimeLimitSeconds
    }
)
"""MongoDB's category of that name: they end a batch of writes as a whole, and are no statement's own error."""


class ThermoclineError(Exception):
    """Base of every exception of ours; its text is written for the person who runs Thermocline."""


class ConfigError(ThermoclineError):
    """The manifest, or what it names, is wrong: a person must change something. Not retried by itself."""


class CommandError(ThermoclineError):
    """A MongoDB error to be answered to a client, exactly as it stands.

    ``code_name`` defaults to the code's MongoDB name. ``labels`` are errorLabels such as
    ``TransientTransactionError``; ``retryable`` adds ``RetryableWriteError`` where the caller
    knows that nothing was executed.
    """

    def __init__(
        self, code: int, message: str, *, code_name: str | None = None, labels: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message
        self.labels = labels
        if code_name is None:
            try:
                code_name = Code(code).name
            except ValueError:
                code_name = f"Location{int(code)}"
        self.code_name = code_name
