"""Errors that stay on one machine: the meaning and the remedy of each. The messages have more details."""

from typing import Final

COMMAND_ERRORS: Final[dict[str, tuple[str, str]]] = {
    "alleles-swapped": (
        "A PLINK file has the alleles of a site in the other order than the study.",
        "Add `--flip` to count the study's allele there.",
    ),
    "already-initialised": (
        "The home folder already contains keys or a ledger.",
        "Use this folder, or name another with `--home`. If the key file is lost, restore it from a backup.",
    ),
    "answer-altered": (
        "An answer of the proxy in a carried folder belongs to another request, or was altered.",
        "Send the folder again, and carry it back.",
    ),
    "answer-unsigned": (
        "The proxy does not sign its answers to carried requests.",
        "Ask the operator: the proxy is older, or a reverse proxy removes the header `dpdpca-answer`.",
    ),
    "audit-failed": (
        "A check of the proxy's signatures, log or stored data failed.",
        "Stop the proxy, keep its home as it is, and find out what happened before you restore anything.",
    ),
    "bad-address": ("The text is not a valid address.", "Correct the part that the message names."),
    "bad-budget": ("A number of a budget is out of range.", "Correct the budget in `policy.toml`."),
    "bad-ca-file": (
        "The file of the certificate authority contains no PEM certificate.",
        "Name the PEM file of the certificate authority.",
    ),
    "bad-certificate": (
        "The server's certificate and key cannot be loaded.",
        "Check the content and the permissions of both files.",
    ),
    "bad-database-url": (
        "SQLAlchemy does not know this kind of database URL.",
        "Compare the URL with the manual of SQLAlchemy.",
    ),
    "bad-evidence": (
        "A statement about the end of a study, or a receipt, is not from this study's parties or not for this"
        " owner.",
        "Keep what the proxy sent, and ask the proxy's operator and the data user.",
    ),
    "bad-name": ("The name of a data set cannot be used.", "Give a short, plain name."),
    "bad-option": (
        "An option has a value that the command does not accept.",
        "Use a value that the message names.",
    ),
    "bad-path": (
        "A path begins with `~`, but there is no such user.",
        "Write the whole path, starting with `/`.",
    ),
    "bad-policy": (
        "`policy.toml` cannot be read, or a line has a wrong value.",
        "Correct the line that the message names.",
    ),
    "bad-role": ("The role is neither `owner` nor `user`.", "Use `--role owner` or `--role user`."),
    "bad-settings": (
        "A setting is wrong, or the settings file cannot be read.",
        "Correct the setting or the file that the message names.",
    ),
    "bad-study": ("The text is not the id of a study.", "Copy the 64 hex digits that `study list` prints."),
    "bad-features": (
        "A table or a list of features cannot be used. The message names the line.",
        "Correct the line. A table has the columns `name`, `lower` and `upper`, and perhaps `centre`,"
        " `scale`, `unit` and `description`.",
    ),
    "bad-why": (
        "The reason for declining a study cannot be shown to people.",
        "Give one line of plain text, at most 500 characters.",
    ),
    "blinded-plan-lost": (
        "A part of a blinded share may have been sent, and this machine can no longer send the same again.",
        "Ask the data user for a new study. The cost of this study stays booked.",
    ),
    "blinding-key-unproved": (
        "The manifest names a key for blinding that the owner has not signed.",
        "Do not join. Tell the data user and this owner.",
    ),
    "cluster-failing": (
        "The Dask cluster could not finish a call.",
        "Look into the logs of its workers, then try again.",
    ),
    "cluster-unreachable": (
        "The Dask scheduler does not answer, or went away.",
        "Start the scheduler, check its address and the certificates, then try again.",
    ),
    "cluster-without-workers": ("The Dask scheduler has no worker.", "Start workers, then try again."),
    "bounds-missing": (
        "`DPPCA` has no bounds. Bounds computed from the data would reveal something about the data.",
        "Give `bounds=(lower, upper)`, based on what you know about the quantities.",
    ),
    "budget-exceeded": (
        "The study would exceed this owner's budget.",
        "Ask for a study with a smaller ε, or have the budget in the policy changed.",
    ),
    "cancelled-before": (
        "This data user has already cancelled the study. An older copy of its home was restored.",
        "Start a new study.",
    ),
    "cannot-combine": (
        "The releases of two studies do not add up.",
        "Combine joint studies, or studies of pairs, on the same terms. The message names what differs.",
    ),
    "cannot-listen": (
        "The server cannot listen on its address or port.",
        "Free the port, or choose another port.",
    ),
    "chain-exceeded": (
        "A round of a chain asks for more than was approved for all rounds together.",
        "Ask the data user for a round with a smaller share of ρ. `--yes` does not override this limit.",
    ),
    "cohort-differs": (
        "The owners in a release are not the owners with which the study closed.",
        "Do not use the release, and keep it as evidence.",
    ),
    "cohort-too-close": (
        "The cohort differs by too few owners from that of an earlier study with a feature in common.",
        "Run a study with the same owners, or with more new owners.",
    ),
    "components-missing": (
        "The model has too few components to rebuild the whole matrix.",
        "Keep denoising on, or keep all components.",
    ),
    "count-differs": (
        "The proved number of records differs from the number in the release.",
        "Do not use the release, and keep it as evidence.",
    ),
    "damaged-file": (
        "The data file is damaged: it cannot be read in its own format.",
        "Export the file again.",
    ),
    "database-refused": (
        "The database refused the query.",
        "Run the query in the database's own client to see the reason.",
    ),
    "demo-process": (
        "A process of the demo ended or did not answer.",
        "Read the lines of the process's log above the message.",
    ),
    "empty-file": ("The sample has no header or no rows.", "Give a CSV file with a header."),
    "empty-passphrase": (
        "The passphrase is empty, or the two entries differ.",
        "Enter the same passphrase twice, as one line of text.",
    ),
    "file-exists": ("The output file already exists.", "Choose another file name."),
    "file-not-private": (
        "Other users may read or change a private file.",
        "Run the `chmod` command in the message.",
    ),
    "folder-in-use": ("The folder exists, and something else is in it.", "Name a new folder."),
    "folder-not-private": (
        "Other users may write to a private folder.",
        "Run the `chmod` command in the message.",
    ),
    "followed-study-ended": (
        "The study that was followed ended without components.",
        "Ask the data user. Join again if it opens another round.",
    ),
    "foreign-form": (
        "The agent's page got a form that does not come from one of its own pages, or from an earlier"
        " session. Nothing was changed.",
        "Open the page again, and send its form.",
    ),
    "former-key": (
        "The key file contains a key that this home has replaced.",
        "Restore the newest `identity.pem`, `former-keys` and `rotations` from the same backup.",
    ),
    "generation-fell": (
        "The proxy shows an older state than it has shown before.",
        "Do not continue. Ask the proxy's operator whether an old copy was restored.",
    ),
    "history-differs": (
        "The proxy has signed two histories that contradict each other.",
        "Do not continue. Keep both answers, and ask the proxy's operator.",
    ),
    "key-length": ("A key must not have this number of bits.", "Choose a multiple of 8 from 2048 to 8192."),
    "ledger-corrupt": (
        "The ledger has an invalid or changed line, or its head belongs to another ledger.",
        "Follow the [recovery instructions](../ledger.md).",
    ),
    "ledger-key": (
        "The key for the ledger's fingerprints is missing, or it belongs to another ledger.",
        "Follow the [recovery instructions](../ledger.md).",
    ),
    "ledger-missing": ("The ledger does not exist.", "Follow the [recovery instructions](../ledger.md)."),
    "ledger-not-written": (
        "The ledger cannot be written, so nothing was sent.",
        "Make the ledger's folder writable, or free space on its disk.",
    ),
    "ledger-of-another": (
        "The ledger contains studies of another owner.",
        "Restore this owner's ledger and keys from one backup.",
    ),
    "ledger-older": (
        "The ledger is an older copy than this owner's other files.",
        "Follow the [recovery instructions](../ledger.md).",
    ),
    "ledger-truncated": (
        "The ledger has fewer entries than before.",
        "Follow the [recovery instructions](../ledger.md).",
    ),
    "log-broken": ("An entry of a log does not follow the entry before it.", "Restore the newest backup."),
    "missing-package": (
        "A file needs a Python package that is not installed.",
        "Install dpdpca with the extra that the message names, such as `genotypes`.",
    ),
    "network-home": (
        "The owner's home is on a network file system.",
        "Name a folder on a disk of this machine with `--home` or `DPDPCA_OWNER_HOME`.",
    ),
    "no-components-yet": (
        "The scores are about the components of a lift, and this owner has not got these components yet.",
        "Join again once the components of the lift are published. The agent does so by itself.",
    ),
    "no-copy": (
        "The published components hold no copy for this owner.",
        "Only the owners in the cohort get a copy.",
    ),
    "no-data": ("The command has no data to read.", "Give `--data FILE`, or a database URL with `--query`."),
    "no-data-set": (
        "The command does not know which data set the records belong to.",
        "Add `--dataset NAME`.",
    ),
    "no-events": ("The event stream broke off or sends nothing.", "Check the settings of the reverse proxy."),
    "no-extension": (
        "A study of this kind cannot be extended.",
        "Extend a joint study or a study of pairs.",
    ),
    "no-file-locks": ("This Python cannot lock files.", "Use CPython on Linux, macOS or Windows."),
    "no-header": ("The text file has no header line.", "Put the column names on the first line."),
    "no-page": (
        "No agent with a page is running in this home.",
        "Run `dpdpca owner serve`.",
    ),
    "no-pair": (
        "The study pairs records, but the data contain only one record.",
        "Give at least two records.",
    ),
    "no-passphrase-file": (
        "The passphrase file cannot be read.",
        "Check the name and the permissions of the file.",
    ),
    "no-query": ("A database as data source needs a query.", "Add `--query 'SELECT …'`."),
    "no-records": (
        "The data contain no record, or no complete record.",
        "Give at least one complete record.",
    ),
    "no-session": (
        "The browser has not opened the agent's page with a link that still works.",
        "Run `dpdpca owner serve --link`, and open the link.",
    ),
    "no-such-data-set": (
        "The ledger has no data set with this name.",
        "List the names with `dpdpca owner ledger`.",
    ),
    "no-such-file": ("The file does not exist.", "Give the path of a file that exists."),
    "no-such-source": (
        "No source of records is registered under this name.",
        "Run `dpdpca owner data list`, or register it with `dpdpca owner data add`.",
    ),
    "no-terminal": (
        "The command must ask a question, but it does not run in a terminal.",
        "Check what the command asks about, then add `--yes`.",
    ),
    "noise-too-large": (
        "The noise is larger than the sampler can draw.",
        "Choose a larger ε, or fewer records.",
    ),
    "not-a-chain": ("The results do not belong to one chain.", "Give the results of all rounds, in order."),
    "not-a-feature": ("A column of the sample cannot be a feature.", "Change the column, or omit it."),
    "not-a-file": ("The path does not name a file.", "Give the path of one file."),
    "not-a-package": (
        "The folder contains no carried requests.",
        "Make one with `dpdpca owner join URL/STUDY --data FILE --to FOLDER`.",
    ),
    "not-a-query": ("The statement is not a query.", "Use a `SELECT` statement."),
    "not-a-wheel": (
        "The file is no wheel of this program.",
        "Give the file that you install with `pip install`.",
    ),
    "not-accepted": (
        "You did not accept the proxy's key, so nothing was sent.",
        "Compare the words with the proxy's operator, and enrol again.",
    ),
    "not-an-integer": ("An encrypted number is not an integer.", "Encrypt integers."),
    "not-approved": (
        "A round of a chain is not covered by what this owner has approved. Nothing was sent.",
        "Read its consent sheet, and join that study yourself if you agree.",
    ),
    "not-carried": (
        "The folder does not contain the proxy's answer yet.",
        "Run `dpdpca owner send FOLDER` on a machine with a network, carry it back, and repeat the command.",
    ),
    "not-compared": (
        "The box on the agent's page was not ticked, so nothing was noted.",
        "Call the other owner, compare all twelve words, then tick the box.",
    ),
    "not-confirmed": (
        "You did not accept the proxy's key, so nothing was sent.",
        "Compare the words with the proxy's operator, and enrol again.",
    ),
    "not-consented": (
        "You did not consent, so nothing was sent or changed.",
        "Run the command again if you agree.",
    ),
    "not-delivered": (
        "A share in a carried folder cannot be withdrawn before the proxy has acknowledged it.",
        "Send the folder and repeat the command, or destroy all copies of the folder.",
    ),
    "not-initialised": (
        "The home folder has no keys.",
        "Run `init` for this role first, or name another folder with `--home`.",
    ),
    "not-new": (
        "An extension takes new records only, and this data set is in the extended study.",
        "Bring other records, under the name of another data set.",
    ),
    "not-started": ("The service did not start.", "Read the log of the service."),
    "not-text": ("The file is not text in a known encoding.", "Save the file in UTF-8."),
    "nothing-above-noise": (
        "No component is above the noise.",
        'Use `metric="study"`, more records or a larger ε.',
    ),
    "nothing-lost": (
        "The database is up to date, so there is no loss to accept.",
        "You need not do anything.",
    ),
    "nothing-to-recover": ("The ledger is in order and needs no recovery.", "You need not do anything."),
    "other-key": (
        "The key file contains a key that is not the key of this home.",
        "Restore the right key file, or make another home for another party.",
    ),
    "out-of-memory": ("A worker process ran out of memory.", "Free memory and try again."),
    "package-altered": (
        "A file of a carried folder is missing, altered, or does not belong to it.",
        "Carry the folder again, or name a new one on the machine with the data.",
    ),
    "package-of-another-owner": (
        "Another owner has made the folder.",
        "Name a new folder.",
    ),
    "package-of-another-version": (
        "Another version of the program has made the folder.",
        "Use the same version on both machines.",
    ),
    "parts-differ": (
        "The files of one table have different columns.",
        "Export all parts with the same columns, or name a pattern that leaves the other files out.",
    ),
    "participant-key-changed": (
        "Another owner is known here with another key for blinding.",
        "Ask that owner. Only after it has confirmed its keys, delete the file that the error names.",
    ),
    "participant-key-given-up": (
        "An owner had replaced the named key before the study was created.",
        "Ask the data user for a new study.",
    ),
    "password-in-arguments": (
        "Other users of this machine can read a password on the command line.",
        "Put the URL into `DPDPCA_DATA_URL`, or into a file that `--data-url-file` names.",
    ),
    "pickled-file": ("An array contains Python objects, which dpdpca does not read.", "Save plain arrays."),
    "plaintext-out-of-range": (
        "A number does not fit into the modulus.",
        "Report this error, because the fault is in the program.",
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
    "policy-known-owners": (
        "You have compared the words of fewer owners than your policy demands for a blinded study.",
        "Compare their words, then run `dpdpca owner trust`.",
    ),
    "policy-mechanism": (
        "The policy does not allow the mechanism.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-owners": (
        "The number of owners that are certain to take part is too small.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-recognised": (
        "A masked study names an owner that the policy does not list.",
        "Find out who the owner is. If you know the owner, add it to the policy's `recognised`.",
    ),
    "policy-records": (
        "The study may close with too few records.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-release": (
        "The policy does not allow the release.",
        "Ask for other terms, or have the policy changed.",
    ),
    "policy-software": (
        "The proxy names software that the policy does not list. Nothing was sent.",
        "Get the wheel or image from the operator, review it, and list its digest under `software`. Or wait.",
    ),
    "proxy-key-changed": (
        "The proxy shows another key than the pinned key.",
        "Do not continue before the proxy's operator has confirmed the new words.",
    ),
    "proxy-key-rolled-back": (
        "The proxy shows a key that it has replaced.",
        "Do not continue, because somebody else may have the old key. Ask the proxy's operator.",
    ),
    "ragged-row": (
        "A row of the text file has too many or too few fields.",
        "Correct the line that the message names.",
    ),
    "ragged-rows": ("The rows of the sample have different lengths.", "Export the sample again."),
    "receipt-contradicts": (
        "The proxy contradicts a receipt that it signed.",
        "Keep both as evidence, and tell the data user and the other owners.",
    ),
    "record-count": (
        "The draft does not allow the number of records in the demo.",
        "Change `min_records` or `max_records` in the draft, or the number of records.",
    ),
    "recovered-ledger": (
        "The ledger was recovered, so it may not know what was sent in blinded studies under these keys.",
        "Run `dpdpca owner rotate`, then ask the data user for a new study.",
    ),
    "release-implausible": (
        "Correct shares cannot lead to this release.",
        "Do not use the release. Ask the owners which of them encoded records outside the bounds.",
    ),
    "release-not-stored": (
        "The release was not written to the disk.",
        "Wait: the proxy tries again by itself.",
    ),
    "release-not-symmetric": (
        "The decrypted matrix is not symmetric.",
        "Do not use the release: run a new study.",
    ),
    "rotation-broken": ("A chain of key rotations is invalid.", "Ask the proxy's operator."),
    "row-too-large": ("A row has values that are too large to be projected.", "Leave out the row."),
    "rule-exceeded": (
        "The month of a rule has no room for another study, or the ledger was recovered in this month.",
        "Join the study yourself, or wait for the next month.",
    ),
    "several-alleles": (
        "A PLINK 2 file has a site with several alternative alleles.",
        "Make a site of each allele, or leave such sites out: `plink2 --max-alleles 2`.",
    ),
    "share-withdrawn": (
        "This owner has withdrawn its share of a study that was followed.",
        "To take part again, join that study while it is open.",
    ),
    "slot-overflow": (
        "A decrypted number is larger than its slots allow.",
        "Do not use the release: run a new study.",
    ),
    "source-differs": (
        "Another source of records is registered under this name.",
        "Choose another name, or remove the registered source first.",
    ),
    "strand-ambiguous": (
        "A PLINK file has the alleles of a site in the other order than the study. They are A and T, or C and"
        " G, so the strands may be swapped instead.",
        "Set the reference alleles of the file (`plink2 --ref-from-fa`), or ask the data user for a study"
        " without the site.",
    ),
    "study-cancelled": ("The proxy has cancelled the study.", "Read the reason, and start a new study."),
    "study-declined": (
        "This owner has declined the study, so no earlier approval joins it.",
        "To take part after all, join the study yourself while it is open.",
    ),
    "study-failed": ("The study ended without a result.", "Read the reason, and start a new study."),
    "tls-required": (
        "Plain HTTP is allowed only for addresses of the same machine.",
        "Give the server a certificate, or use its `https://` address.",
    ),
    "too-many-records": (
        "The data contain more records than the study allows.",
        "Ask the data user for a study with a larger `max_records`.",
    ),
    "transcript-broken": (
        "The signed history of the study contradicts itself or the release.",
        "Keep all copies as evidence, and ask the proxy's operator.",
    ),
    "two-data-sets": (
        "These records belong to another data set than the records in the study's share.",
        "Use the records of the share, or merge the two data sets with `--dataset`.",
    ),
    "unfit-cryptography": (
        "The installed Python package `cryptography` has no ML-KEM-768.",
        "Install version 48 or newer as a wheel, or build it with OpenSSL 3.5 or newer.",
    ),
    "unknown-format": (
        "The format of the file is not supported.",
        "Unpack the file, or export it as CSV or Parquet.",
    ),
    "unknown-mechanism": ("There is no mechanism with this name.", "Use a mechanism that the message names."),
    "unknown-variable": (
        "A variable `DPDPCA_…` is set, but nothing reads it.",
        "Correct the name of the variable, or unset it.",
    ),
    "unnamed-columns": (
        "The array contains no names for its columns.",
        "Save the array together with an array `features` that contains the names.",
    ),
    "unreadable": ("The sample is not a CSV file in UTF-8.", "Export the sample again."),
    "user-key-changed": (
        "The data user shows another key than before.",
        "Do not continue before the data user has confirmed the new words.",
    ),
    "user-key-rolled-back": (
        "The data user shows a key that it has replaced.",
        "Do not continue, because somebody else may have the old key. Ask the data user.",
    ),
    "owner-key-changed": (
        "The manifest names an owner with another key than before.",
        "Do not continue before that owner has confirmed the new words.",
    ),
    "owner-key-rolled-back": (
        "The manifest names an owner with a key that the owner has replaced.",
        "Do not continue, because somebody else may have the old key. Ask that owner.",
    ),
    "wheel-damaged": (
        "A file in the wheel differs from the list in the wheel.",
        "Get the wheel again. If that does not help, tell whoever published it.",
    ),
    "words-differ": (
        "The words that the other owner told you are not those of the key in the study.",
        "Do not join. Tell the data user and this owner.",
    ),
    "worker-refused": (
        "A Dask worker has another version or seal key than its caller, or cannot read the files.",
        "Give every worker the version, the seal key and the files of its caller.",
    ),
    "worker-died": ("A worker process ended before it finished its work.", "Try again."),
    "worker-failed": ("A worker process had an unexpected error.", "Read the log, and report the error."),
    "wrong-key": ("The key does not belong to this study.", "Use the key with which the study was created."),
    "wrong-length": ("A key or vector has the wrong length.", "Use the length that the message states."),
    "wrong-name": (
        "The manifest names a party that the proxy has not enrolled under this name and key.",
        "Do not join. Ask the proxy's operator and the data user whose key it is.",
    ),
    "wrong-passphrase": (
        "The passphrase is missing or wrong.",
        "Give the passphrase with which the key was sealed.",
    ),
    "wrong-round": (
        "A lift or scores do not fit the earlier rounds of their chain, or this owner does not know these"
        " rounds.",
        "Ask the data user to start the chain again. An owner that joined no sketch cannot join its lift.",
    ),
    "wrong-shape": ("An array has the wrong shape.", "Use the shape that the message states."),
    "wrong-study": (
        "A message belongs to another study.",
        "Do not continue. Tell the data user and the proxy's operator.",
    ),
    "wrong-user": (
        "The manifest names another data user.",
        "Use the home of the data user that made the study.",
    ),
}
"""Name → what happened, what to do; both in Markdown."""
