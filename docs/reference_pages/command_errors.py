"""Errors that stay on one machine: what each means and what helps. Commands say more, with names."""

from typing import Final

COMMAND_ERRORS: Final[dict[str, tuple[str, str]]] = {
    "already-initialised": (
        "The home folder has keys or a ledger already.",
        "Use it, or name another folder with `--home`. If its key file is lost, restore it from a backup.",
    ),
    "audit-failed": (
        "A check of the proxy's signatures, log or stored data failed.",
        "Stop the proxy, keep its home as it is, and find out what happened before you restore anything.",
    ),
    "bad-address": (
        "The text is not an address that can be used.",
        "Correct the part that the message names.",
    ),
    "bad-budget": ("The figures of a budget are out of range.", "Correct them in `policy.toml`."),
    "bad-ca-file": ("The file of the authority has no PEM certificate.", "Name the authority's PEM file."),
    "bad-certificate": (
        "The server's certificate and key cannot be loaded.",
        "Check both files and their modes.",
    ),
    "bad-database-url": (
        "SQLAlchemy does not know this kind of database URL.",
        "Compare it with its manual.",
    ),
    "bad-evidence": (
        "A receipt is not from this study's proxy or not for this owner.",
        "Keep it, and ask the proxy's operator.",
    ),
    "bad-name": ("The name of a data set cannot be used.", "Give a short plain name."),
    "bad-option": (
        "An option has a value that the command does not take.",
        "Use a value that the message names.",
    ),
    "bad-path": ("A path begins with `~` and there is no such user.", "Write the whole path, from `/` on."),
    "bad-policy": (
        "`policy.toml` cannot be read, or a line has a wrong value.",
        "Correct the line it names.",
    ),
    "bad-role": ("A role is `owner` or `user`.", "Give one of them to `--role`."),
    "bad-settings": ("A setting is wrong, or the settings file cannot be read.", "Correct what it names."),
    "bad-study": ("That is not the id of a study.", "Copy the 64 hex digits that `study list` prints."),
    "bounds-missing": (
        "`DPPCA` has no bounds. Taken from the data, they would give the data away.",
        "Give `bounds=(lower, upper)`, from what you know about the quantities.",
    ),
    "budget-exceeded": (
        "The study would take this owner above its budget.",
        "Ask for a study with a smaller ε, or have the budget in the policy changed.",
    ),
    "cannot-listen": ("The server cannot use its address or port.", "Free the port, or name another."),
    "chain-exceeded": (
        "A round of a chain asks for more than was approved for all rounds.",
        "Ask the data user for a round with a smaller share. `--yes` does not help.",
    ),
    "cohort-differs": (
        "The owners in a release are not those that the study closed with.",
        "Do not use the release, and keep it as evidence.",
    ),
    "cohort-too-close": (
        "The owners of the study differ by too few from those of an earlier study with a feature in common.",
        "Run a study with the same owners, or with more that are new.",
    ),
    "components-missing": (
        "Too few components are kept to rebuild the whole matrix.",
        "Leave denoising on, or keep all components.",
    ),
    "count-differs": (
        "The proved number of records is not the one in the release.",
        "Do not use the release, and keep it as evidence.",
    ),
    "damaged-file": ("The data file cannot be read as its kind.", "Export it again."),
    "database-refused": ("The database refused the query.", "Run the query in the database's own client."),
    "demo-process": (
        "A process of the demo ended or did not answer.",
        "Read the lines of its log above the message.",
    ),
    "empty-file": ("The sample has no header or no rows.", "Give a CSV file with a header."),
    "empty-passphrase": ("The passphrase is empty, or its two entries differ.", "Give one line of text."),
    "file-exists": ("The file that would be written exists.", "Name another file."),
    "file-not-private": ("Others may read or change a private file.", "Run the `chmod` in the message."),
    "folder-not-private": ("Others may write into a private folder.", "Run the `chmod` in the message."),
    "former-key": (
        "The key file holds a key that the home has given up.",
        "Restore the newest `identity.pem`, `former-keys` and `rotations` from one backup.",
    ),
    "generation-fell": (
        "The proxy shows an older state than it has shown before.",
        "Do not go on. Ask its operator whether an old copy was restored.",
    ),
    "history-differs": (
        "The proxy has signed two histories that contradict each other.",
        "Do not go on. Keep both answers, and ask its operator.",
    ),
    "key-length": ("No key can have this many bits.", "Choose a multiple of 8 from 2048 on."),
    "late-withdrawal": (
        "The receipt of a withdrawal is from after the closing time, so nothing is refunded.",
        "Look at the study with `dpdpca owner status`.",
    ),
    "ledger-corrupt": (
        "The ledger has an invalid or changed line, or its head belongs to a different ledger.",
        "See [recovery](../ledger.md).",
    ),
    "ledger-key": (
        "The key of the ledger's fingerprints is missing, or it is not the key of this ledger.",
        "See [recovery](../ledger.md).",
    ),
    "ledger-missing": ("There is no ledger.", "See [recovery](../ledger.md)."),
    "ledger-not-written": (
        "The ledger cannot be written, so nothing was sent.",
        "Make its folder writable, or make room on its disk.",
    ),
    "ledger-of-another": (
        "Another owner has booked studies in this ledger.",
        "Restore this owner's ledger and keys from one backup.",
    ),
    "ledger-older": (
        "The ledger is an older copy than this owner's other files.",
        "See [recovery](../ledger.md).",
    ),
    "ledger-truncated": ("The ledger has fewer entries than it had.", "See [recovery](../ledger.md)."),
    "log-broken": ("An entry of a log does not follow the one before.", "Restore the newest backup."),
    "no-copy": (
        "The published components hold no copy for this owner.",
        "Only owners in the cohort get one.",
    ),
    "no-data": ("The command names no data.", "Give `--data FILE`, or a database URL with `--query`."),
    "no-data-set": ("The records belong to no named data set.", "Add `--dataset NAME`."),
    "no-events": (
        "The stream of events broke off or is silent.",
        "Look at the settings of the reverse proxy.",
    ),
    "no-file-locks": ("This Python cannot lock files.", "Use CPython on Linux, macOS or Windows."),
    "no-header": ("The text file has no header line.", "Put the column names into its first line."),
    "no-pair": ("The study pairs records, and the data has one.", "Give at least two records."),
    "no-passphrase-file": ("The passphrase file cannot be read.", "Check its name and mode."),
    "no-query": ("A database needs a query.", "Add `--query 'SELECT …'`."),
    "no-records": ("No record is there, or none is complete.", "Give at least one complete record."),
    "no-such-data-set": (
        "The ledger has no data set of this name.",
        "See `dpdpca owner ledger` for its names.",
    ),
    "no-such-file": ("The file is not there.", "Give the path of a file that exists."),
    "no-terminal": ("The command has a question, and nobody is at a terminal.", "Compare, then add `--yes`."),
    "noise-too-large": (
        "The noise is larger than the sampler can draw.",
        "Choose a larger ε, or fewer records.",
    ),
    "not-a-chain": (
        "The results do not belong to one chain.",
        "Give the results of all rounds in their order.",
    ),
    "not-a-feature": ("A column of the sample cannot be a feature.", "Change the column, or leave it out."),
    "not-a-file": ("The path is not that of a file.", "Give the path of one file."),
    "not-a-query": ("The statement returns no rows.", "Give a `SELECT`."),
    "not-accepted": (
        "You did not accept the proxy's key, so nothing was sent.",
        "Compare the words with its operator and enrol again.",
    ),
    "not-an-integer": ("A number was encrypted as a fraction.", "Encrypt integers."),
    "not-confirmed": (
        "You did not accept the proxy's key, so nothing was sent.",
        "Compare the words with its operator and enrol again.",
    ),
    "not-consented": ("You said no, so nothing was sent or changed.", "Give the command again if you agree."),
    "not-initialised": (
        "The home folder has no keys.",
        "Run `init` of this role first, or name another `--home`.",
    ),
    "not-started": ("The service did not start.", "Read its log."),
    "not-text": ("The file is not text in a known encoding.", "Save it in UTF-8."),
    "nothing-above-noise": (
        "No component stands above the noise.",
        'Use `metric="study"`, more records or a larger ε.',
    ),
    "nothing-lost": ("The database is as new as it should be.", "Nothing needs to be done."),
    "nothing-to-recover": ("The ledger is in order.", "Nothing needs to be done."),
    "other-key": (
        "The key file holds another key than the one of this home.",
        "Restore the right key file, or make another home for another party.",
    ),
    "out-of-memory": ("A worker process ran out of memory.", "Make memory free and try again."),
    "password-in-arguments": (
        "Other users of this machine can read a password on the command line.",
        "Put the URL into `DPDPCA_DATA_URL`, or into a file that `--data-url-file` names.",
    ),
    "pickled-file": ("An array holds Python objects, which are not read.", "Save plain arrays."),
    "plaintext-out-of-range": (
        "A number does not fit the modulus.",
        "This is an error in the program: report it.",
    ),
    "policy-delta": (
        "The study's δ is above the policy's limit.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-epsilon": (
        "The study's ε is above the policy's limit.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-features": (
        "The study has too many encoded columns.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-mechanism": (
        "The policy does not allow the mechanism.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-owners": (
        "Too few owners are certain to take part.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-recognised": (
        "A masked study names an owner that the policy does not list.",
        "Ask who it is, and add it to the policy's `recognised` if you know it.",
    ),
    "policy-records": (
        "The study may close with too few records.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-release": (
        "The policy does not allow the release.",
        "Ask for other terms, or have the policy changed.",
    ),
    "proxy-key-changed": (
        "The proxy shows another key than the one that was pinned.",
        "Do not go on before its operator has confirmed the new words.",
    ),
    "proxy-key-rolled-back": (
        "The proxy shows a key that it has given up.",
        "Do not go on: somebody may hold the old key. Ask its operator.",
    ),
    "ragged-row": ("A row of the text file has too many or too few fields.", "Correct the line it names."),
    "ragged-rows": ("Rows of the sample differ in length.", "Export the sample again."),
    "receipt-contradicts": (
        "What the proxy shows contradicts a receipt that it signed.",
        "Keep both, and tell the data user and the other owners.",
    ),
    "record-count": (
        "The demo needs more records for this many owners.",
        "Give more records or fewer owners.",
    ),
    "release-implausible": (
        "Honest shares cannot lead to this release.",
        "Do not use it. Ask the owners which of them encoded records outside the bounds.",
    ),
    "release-not-stored": ("The release did not reach the disk.", "The proxy tries again by itself."),
    "release-not-symmetric": ("The decrypted matrix is not symmetric.", "Do not use it: run a new study."),
    "rotation-broken": ("A chain of key rotations does not hold.", "Ask the proxy's operator."),
    "row-too-large": ("A row is too large to be projected.", "Leave it out."),
    "slot-overflow": (
        "A decrypted number holds more than its slots.",
        "Do not use the release: run a new study.",
    ),
    "study-cancelled": ("The proxy has cancelled the study.", "Read the reason, and start a new study."),
    "study-failed": ("The study ended without a result.", "Read the reason, and start a new study."),
    "tls-required": (
        "Plain HTTP is only for addresses of the same machine.",
        "Give the server a certificate, or name its `https://` address.",
    ),
    "too-many-records": (
        "The data has more records than the study takes.",
        "Ask the data user for a study with a larger `max_records`.",
    ),
    "transcript-broken": (
        "The signed history of the study contradicts itself or the release.",
        "Keep all copies as evidence, and ask the proxy's operator.",
    ),
    "two-data-sets": (
        "These records count in another data set than the study's share.",
        "Give the study's own records, or merge the two with `--dataset`.",
    ),
    "unknown-format": (
        "The file is of a kind that cannot be read.",
        "Unpack it, or export it as CSV or Parquet.",
    ),
    "unknown-mechanism": ("There is no such mechanism.", "Use one that the message names."),
    "unknown-variable": (
        "A variable `DPDPCA_…` is set that nothing reads.",
        "Correct its name, or unset it.",
    ),
    "unnamed-columns": (
        "The array has no names for its columns.",
        "Save it with an array `features` of names.",
    ),
    "unreadable": ("The sample is not CSV in UTF-8.", "Export it again."),
    "user-key-changed": (
        "The data user shows another key than the one that was met before.",
        "Do not go on before the data user has confirmed the new words.",
    ),
    "user-key-rolled-back": (
        "The data user shows a key that it has given up.",
        "Do not go on: somebody may hold the old key. Ask the data user.",
    ),
    "owner-key-changed": (
        "An owner is named with another key than the one that was met before.",
        "Do not go on before that owner has confirmed the new words.",
    ),
    "owner-key-rolled-back": (
        "An owner is named with a key that it has given up.",
        "Do not go on: somebody may hold the old key. Ask that owner.",
    ),
    "worker-died": ("A worker process ended before its work.", "Try again."),
    "worker-failed": ("A worker process met an unexpected error.", "Read the log, and report it."),
    "wrong-key": ("The key does not belong to this study.", "Use the key that made the study."),
    "wrong-length": ("A key or vector has a wrong length.", "Give one of the length in the message."),
    "wrong-name": (
        "The manifest names a party that the proxy has not enrolled under this name and key.",
        "Do not join. Ask the proxy's operator and the data user whose key it is.",
    ),
    "wrong-passphrase": (
        "The passphrase is missing or wrong.",
        "Give the passphrase that the key was made with.",
    ),
    "wrong-shape": ("An array has a wrong shape.", "Give one of the shape in the message."),
    "wrong-study": (
        "A message belongs to another study than it should.",
        "Do not go on. Tell the data user and the proxy's operator.",
    ),
    "wrong-user": (
        "The manifest names another data user.",
        "Use the home of the data user that made the study.",
    ),
}
"""Name → what happened, what to do; both in Markdown."""
